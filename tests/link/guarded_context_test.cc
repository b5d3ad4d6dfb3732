#include "core/link/gloo/guarded_context.h"

#include <gloo/transport/tcp/attr.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <optional>
#include <thread>

#include "core/base/descriptor.h"
#include "core/link/gloo/sleeping_loop.h"
#include "core/link/gloo/watching_epoll.h"
#include "tests/link/tcp_pair.h"

namespace deft::link::gloo_backend {
namespace {

// A device of gloo on loopback. It has a loop of its own.
std::shared_ptr<gloo::transport::tcp::Device> loopback_device() {
  gloo::transport::tcp::attr attributes("127.0.0.1");
  attributes.ai_family = AF_INET;
  attributes.ai_socktype = SOCK_STREAM;
  attributes.ai_protocol = IPPROTO_TCP;
  auto* const address = reinterpret_cast<sockaddr_in*>(&attributes.ai_addr);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  attributes.ai_addrlen = sizeof(sockaddr_in);
  return std::make_shared<gloo::transport::tcp::Device>(attributes);
}

// A connection ends while its peer sends nonsense. `prepare`: before it is gloo's.
void end_while_peer_sends(const std::shared_ptr<gloo::transport::tcp::Device>& device, int round,
                          const std::function<void(GuardedContext&)>& prepare = {}) {
  auto [socket, peer] = testing::tcp_pair();
  const int wire = socket.get();
  auto context = std::make_shared<GuardedContext>(device, 0, 2);
  context->createPair(1);
  if (prepare) prepare(*context);
  context->adopt(1, socket.release(), wire);
  std::atomic<bool> sends{false};
  std::thread sender([&sends, to = peer.get()] {
    const std::byte nonsense{0xee};
    while (::send(to, &nonsense, 1, MSG_NOSIGNAL) == 1 || errno == EAGAIN) sends = true;
  });
  while (!sends) std::this_thread::yield();
  for (int wait = 0; wait < round; ++wait) std::this_thread::yield();
  context.reset();
  sender.join();  // the connection is closed
}

// Some pairs end while the loop handles a byte for them, and some while gloo throws at a whole preamble that makes no sense.
TEST(GuardedContext, EndsWhileItsPeerSends) {
  const auto device = loopback_device();
  for (int round = 0; round < 100; ++round) end_while_peer_sends(device, round);
}

TEST(SleepingLoop, LeavesToGlooHowAConnectionEnds) {
  for (int round = 0; round < 50; ++round) {
    std::optional<SleepingLoop> loop;
    const auto device = loopback_device();
    end_while_peer_sends(device, 2 * round, [&](GuardedContext& context) { context.serve_by(loop.emplace(*device)); });
  }
}

TEST(SleepingLoop, EndsWithADeviceThatHadNoConnection) {
  auto device = loopback_device();
  SleepingLoop loop(*device);
  loop.wake();
  device.reset();
}

TEST(WatchingEpoll, IsFoundByWhatItWatchesAndWithWhichData) {
  const Descriptor watched(::eventfd(0, EFD_CLOEXEC)), other(::epoll_create1(EPOLL_CLOEXEC));
  const Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  int handler = 0, another = 0;
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &handler}};
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, watched.get(), &event), 0);
  EXPECT_EQ(epoll_that_watches(watched.get(), &handler), epoll.get());
  EXPECT_EQ(epoll_that_watches(watched.get(), &another), std::nullopt);
  EXPECT_EQ(epoll_that_watches(other.get(), &handler), std::nullopt);
}

// gloo's own loop would call its thread a hundred times a second.
TEST(WatchingEpoll, IsFoundOfALoopOfGloo) {
  struct Nothing final : gloo::transport::tcp::Handler {
    void handleEvents(int /*events*/) override {}
  } handler;
  const auto device = loopback_device();
  const Descriptor watched(::eventfd(0, EFD_CLOEXEC));
  device->registerDescriptor(watched.get(), EPOLLIN, &handler);
  EXPECT_NE(epoll_that_watches(watched.get(), static_cast<gloo::transport::tcp::Handler*>(&handler)), std::nullopt);
  device->unregisterDescriptor(watched.get(), &handler);
}

}  // namespace
}  // namespace deft::link::gloo_backend
