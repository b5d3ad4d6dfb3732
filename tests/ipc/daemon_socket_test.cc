#include "core/ipc/daemon_socket.h"
#include "core/base/descriptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <functional>

#include "tests/ipc/scratch.h"

namespace deft::ipc {
namespace {

constexpr uid_t kNobody = 65534;

// Runs `body` in a child process as another user; only root may. The child's exit status is 0 if `body` returns true.
bool as_nobody(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(setresuid(kNobody, kNobody, kNobody) == 0 && body() ? 0 : 1);
  int status = -1;
  return waitpid(child, &status, 0) == child && status == 0;
}

std::vector<std::string> paths_of(const std::vector<DaemonSocket>& sockets) {
  std::vector<std::string> paths;
  for (const auto& socket : sockets) paths.push_back(socket.path);
  return paths;
}

using Paths = std::vector<std::string>;

TEST(SocketPath, TheOptionWinsAndIsTheOnlyOneTried) {
  EXPECT_EQ(socket_path("/x/y.sock"), "/x/y.sock");
  EXPECT_EQ(paths_of(daemon_sockets("/x/y.sock")), Paths{"/x/y.sock"});
}

TEST(SocketPath, RootServesAndUsesTheSystems) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  EXPECT_EQ(socket_path(""), kSystemSocket);
  EXPECT_EQ(paths_of(daemon_sockets("")), Paths{kSystemSocket});
}

TEST(SocketPath, AnotherUserServesInTheRuntimeFolderOrInTmp) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  EXPECT_TRUE(as_nobody([] {
    setenv("XDG_RUNTIME_DIR", "/run/user/65534", 1);
    return socket_path("") == "/run/user/65534/deftd.sock" &&
           paths_of(daemon_sockets("")) == Paths{"/run/user/65534/deftd.sock", kSystemSocket};
  }));
  EXPECT_TRUE(as_nobody([] {
    unsetenv("XDG_RUNTIME_DIR");
    return socket_path("") == "/tmp/deftd-65534.sock" &&
           paths_of(daemon_sockets("")) == Paths{"/tmp/deftd-65534.sock", kSystemSocket};
  }));
}

class Daemons : public testing::Test {
 protected:
  [[nodiscard]] std::string refusal() const {
    auto found = connect_to_daemon(sockets_);
    if (found) return "connected to " + found->path;
    EXPECT_EQ(found.error().kind, ErrorKind::kUnavailable);
    return found.error().message();
  }
  test::Scratch scratch_;
  const std::string own_ = scratch_.file("own.sock"), system_ = scratch_.file("system.sock");
  const std::vector<DaemonSocket> sockets_{{own_, true}, {system_}};
};

TEST_F(Daemons, TheUsersOwnIsTakenFirst) {
  auto own = Listener::bind(own_), system = Listener::bind(system_);
  ASSERT_TRUE(own && system);
  EXPECT_EQ(refusal(), "connected to " + own_);
}

TEST_F(Daemons, TheSystemsServesAUserWhoHasNone) {
  auto system = Listener::bind(system_);
  ASSERT_TRUE(system);
  EXPECT_EQ(refusal(), "connected to " + system_);
}

TEST_F(Daemons, ADeadDaemonsFileIsPassedBy) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  own_.copy(address.sun_path, sizeof address.sun_path - 1);
  const Descriptor dead(socket(AF_UNIX, SOCK_SEQPACKET, 0));
  ASSERT_EQ(bind(dead.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);  // and nobody listens
  auto system = Listener::bind(system_);
  ASSERT_TRUE(system);
  EXPECT_EQ(refusal(), "connected to " + system_);
}

TEST_F(Daemons, WithoutAnyTheErrorNamesAllThatWereTried) {
  const auto text = refusal();
  EXPECT_NE(text.find(own_), std::string::npos) << text;
  EXPECT_NE(text.find(system_), std::string::npos) << text;
  EXPECT_NE(text.find("start deftd"), std::string::npos) << text;
}

TEST_F(Daemons, AStrangerBehindTheUsersOwnSocketIsNotBelieved) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  auto stranger = Listener::bind(own_), system = Listener::bind(system_);
  ASSERT_TRUE(stranger && system);
  std::filesystem::permissions(std::filesystem::path(own_).parent_path(), std::filesystem::perms::all);
  ASSERT_EQ(chmod(own_.c_str(), 0666), 0);
  ASSERT_EQ(chmod(system_.c_str(), 0666), 0);
  EXPECT_TRUE(as_nobody([this] {
    const auto found = connect_to_daemon(sockets_);
    return found && found->path == system_;
  }));
}

TEST_F(Daemons, ADaemonOfAnotherUserIsBelievedOnlyInAFolderOfThatUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  const std::string folder = std::filesystem::path(system_).parent_path();
  const std::vector<DaemonSocket> named{{system_}};
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setresuid(kNobody, kNobody, kNobody) != 0) _exit(1);
    auto listener = Listener::bind(system_);
    if (!listener) _exit(2);
    pause();
  }
  const auto connects = [&] { return connect_to_daemon(named); };
  for (int i = 0; i < 2000 && !std::filesystem::exists(system_); ++i) usleep(10'000);
  auto refused = connects();
  for (int i = 0; i < 2000 && refused.error().what.find("no deftd answers") != std::string::npos; ++i) {
    usleep(10'000);
    refused = connects();
  }
  EXPECT_NE(refused.error().what.find("is of user 65534, not of this one"), std::string::npos) << refused.error().what;
  ASSERT_EQ(chown(folder.c_str(), kNobody, kNobody), 0);
  EXPECT_FALSE(connects()) << "everybody may write there";
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  EXPECT_TRUE(connects());
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
  chown(folder.c_str(), 0, 0);
}

TEST_F(Daemons, NobodyElseCanHoldTheLockOfASocket) {
  auto own = Listener::bind(own_);
  ASSERT_TRUE(own);
  struct stat info {};
  ASSERT_EQ(stat((own_ + ".lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace deft::ipc
