// New clients, also while the process has no descriptor left.
#include "daemon/server/acceptor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

namespace deft::daemon {
namespace {

// No descriptor can be made while this exists.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const int next = dup(0);  // the lowest free one; all below it are taken
    close(next);
    const rlimit none{static_cast<rlim_t>(next), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

struct AcceptorTest : ::testing::Test {
  void SetUp() override {
    auto listener = ipc::Listener::bind(path);
    ASSERT_TRUE(listener) << listener.error().message();
    acceptor = std::make_unique<Acceptor>(reactor, std::move(*listener),
                                          [this](ipc::MessageSocket socket) { taken.push_back(std::move(socket)); });
    ASSERT_TRUE(acceptor->start());
  }
  ipc::MessageSocket connect() {
    auto channel = ipc::MessageSocket::connect(path);
    EXPECT_TRUE(channel) << channel.error().message();
    return std::move(*channel);
  }
  void turn() {
    while (reactor.run_once()) {
    }
  }

  const std::string path =
      (std::filesystem::temp_directory_path() / ("deft-acceptor-" + std::to_string(getpid()) + ".sock")).string();
  ManualClock clock;
  Reactor reactor{clock};
  std::vector<ipc::MessageSocket> taken;
  std::unique_ptr<Acceptor> acceptor;
};

TEST_F(AcceptorTest, TakesAllWhoWait) {
  std::vector<ipc::MessageSocket> clients;
  for (int i = 0; i < 100; ++i) clients.push_back(connect());
  turn();
  EXPECT_EQ(taken.size(), 100u);
  EXPECT_EQ(acceptor->failures(), 0u);
}

TEST_F(AcceptorTest, WithoutDescriptorsTheLoopDoesNotSpinAndTheClientIsTakenLater) {
  const ipc::MessageSocket client = connect();
  {
    const NoDescriptors none;
    EXPECT_TRUE(reactor.run_once());
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(reactor.run_once()) << "nothing can be done: the loop would sleep";
    EXPECT_EQ(acceptor->failures(), 1u);
    clock.advance(Acceptor::kPauseUs);
    while (reactor.run_once()) continue;  // no member function: UBSan's check of the object needs a descriptor
    EXPECT_EQ(acceptor->failures(), 2u) << "it tries again";
    EXPECT_TRUE(taken.empty());
  }
  turn();
  EXPECT_TRUE(taken.empty()) << "not before the pause is over";
  clock.advance(Acceptor::kPauseUs);
  turn();
  EXPECT_EQ(taken.size(), 1u);
  EXPECT_EQ(acceptor->failures(), 2u);
}

}  // namespace
}  // namespace deft::daemon
