// The rendezvous store: answers come when all keys exist; waiting ends by deadline and by cancellation.
#include "daemon/wire/store.h"

#include <gtest/gtest.h>

#include <thread>

namespace deft::daemon {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

struct Loop {  // a store on one reactor, its client used from other threads
  Loop()
      : table([this](const Peer&, proto::StoreValue value) { client->arrived(value); }),
        client(std::make_shared<StoreClient>(reactor,
                                             [this](proto::Envelope envelope) {
                                               if (envelope.has_store_set()) table.set(envelope.store_set());
                                               if (envelope.has_store_get()) table.get("me", envelope.store_get());
                                             })),
        thread([this] { reactor.run(); }) {}
  ~Loop() {
    reactor.post([this] { client->cancel({ErrorKind::kLost, "over", "", {}}); });
    reactor.stop();
    thread.join();
  }
  Reactor reactor;
  StoreTable table;
  std::shared_ptr<StoreClient> client;
  std::thread thread;
};

TEST(Store, AGetWaitsForAllItsKeys) {
  Loop loop;
  std::thread setter([&] {
    ASSERT_TRUE(loop.client->set("a", bytes_of("1")));
    ASSERT_TRUE(loop.client->set("b", bytes_of("22")));
  });
  const std::vector<std::string> keys{"b", "a"};
  const auto values = loop.client->get(keys, MonotonicClock::now() + 5'000'000);
  setter.join();
  ASSERT_TRUE(values) << values.error().message();
  EXPECT_EQ((*values)[0], bytes_of("22"));
  EXPECT_EQ((*values)[1], bytes_of("1"));
}

TEST(Store, ATimeoutNamesTheKeys) {
  Loop loop;
  const std::vector<std::string> keys{"nobody"};
  const auto values = loop.client->get(keys, MonotonicClock::now() + 20'000);
  ASSERT_FALSE(values);
  EXPECT_EQ(values.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(values.error().what.find("nobody"), std::string::npos);
}

TEST(Store, CancellingEndsAWaitAtOnceWithItsReason) {
  Loop loop;
  loop.reactor.post([&] {
    loop.reactor.after(5000, [&] { loop.client->cancel({ErrorKind::kLost, "node 1 was lost", "", {}}); });
  });
  const std::vector<std::string> keys{"nobody"};
  const auto values = loop.client->get(keys, MonotonicClock::now() + 60'000'000);
  ASSERT_FALSE(values);
  EXPECT_EQ(values.error().what, "node 1 was lost");
}

}  // namespace
}  // namespace deft::daemon
