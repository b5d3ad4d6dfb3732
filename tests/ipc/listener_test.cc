#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "core/ipc/message_socket.h"
#include "tests/ipc/scratch.h"

namespace deft::ipc {
namespace {

namespace fs = std::filesystem;

class ListenerTest : public ::testing::Test {
 protected:
  test::Scratch scratch_;
  const std::string path_ = scratch_.file("deftd.sock");
};

TEST_F(ListenerTest, AWorkerConnectsAndIsAccepted) {
  auto listener = Listener::bind(path_);
  ASSERT_TRUE(listener) << listener.error().message();
  auto none = listener->accept();
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->has_value());
  auto worker = MessageSocket::connect(path_);
  ASSERT_TRUE(worker) << worker.error().message();
  auto accepted = listener->accept();
  ASSERT_TRUE(accepted && accepted->has_value());
  EXPECT_EQ((*accepted)->peer()->pid, getpid());
}

TEST_F(ListenerTest, OnlyOwnerAndGroupMayConnect) {
  auto listener = Listener::bind(path_);
  ASSERT_TRUE(listener);
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
}

TEST_F(ListenerTest, NothingStaysBehind) {
  { ASSERT_TRUE(Listener::bind(path_)); }
  EXPECT_TRUE(fs::is_empty(fs::path(path_).parent_path()));
}

TEST_F(ListenerTest, ASecondDaemonIsRefusedAndTheFirstIsNamed) {
  auto first = Listener::bind(path_);
  ASSERT_TRUE(first);
  auto second = Listener::bind(path_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(second.error().what.find(std::to_string(getpid())), std::string::npos) << second.error().message();
  EXPECT_TRUE(MessageSocket::connect(path_)) << "the first one's socket is gone";
}

TEST_F(ListenerTest, TheFileOfAKilledDaemonIsReplaced) {
  const pid_t child = fork();
  if (child == 0) {
    auto listener = Listener::bind(path_);
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_TRUE(fs::exists(path_));
  EXPECT_FALSE(MessageSocket::connect(path_));
  auto listener = Listener::bind(path_);
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_TRUE(MessageSocket::connect(path_));
}

TEST_F(ListenerTest, AFileThatIsNoSocketIsKept) {
  std::ofstream(path_) << "precious";
  auto listener = Listener::bind(path_);
  ASSERT_FALSE(listener);
  EXPECT_NE(listener.error().what.find(path_), std::string::npos);
  EXPECT_EQ(fs::file_size(path_), 8u);
}

TEST_F(ListenerTest, APathThatCannotBeNamesItself) {
  auto listener = Listener::bind("/proc/none/deftd.sock");
  ASSERT_FALSE(listener);
  EXPECT_NE(listener.error().what.find("/proc/none"), std::string::npos);
  EXPECT_FALSE(Listener::bind(std::string(200, 'x')));
  EXPECT_FALSE(Listener::bind(""));
}

TEST_F(ListenerTest, NoDaemonIsAnErrorThatSaysWhatToDo) {
  auto channel = MessageSocket::connect(path_);
  ASSERT_FALSE(channel);
  EXPECT_EQ(channel.error().kind, ErrorKind::kUnavailable);
  EXPECT_NE(channel.error().what.find(path_), std::string::npos);
  EXPECT_NE(channel.error().fix.find("deftd"), std::string::npos);
}

}  // namespace
}  // namespace deft::ipc
