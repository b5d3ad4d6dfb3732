// The rendezvous store: answers come when all keys exist; waiting ends by deadline and by cancellation.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <limits>
#include <thread>

#include "daemon/leader/store_table.h"
#include "daemon/node/store_client.h"

namespace deft::daemon {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

struct Loop {  // a store on one reactor, its client used from other threads
  Loop()
      : table([this](const Peer&, wire::StoreValue value) { client->arrived(std::move(value)); }),
        client(std::make_shared<StoreClient>(reactor,
                                             [this](wire::ToLeader message) {
                                               auto* const set = std::get_if<wire::StoreSet>(&message);
                                               if (set != nullptr) return check(table.set(std::move(*set)));
                                               check(table.get("me", std::get<wire::StoreGet>(std::move(message))));
                                             })),
        thread([this] { reactor.run(); }) {}
  ~Loop() {
    reactor.post([this] { client->cancel({ErrorKind::kLost, "over", "", {}}); });
    reactor.stop();
    thread.join();
  }
  static void check(const Result<void>& done) { EXPECT_TRUE(done) << done.error().message(); }
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
  const auto values = loop.client->get(keys, MonotonicClock::now() + 60'000'000);
  setter.join();
  ASSERT_TRUE(values) << values.error().message();
  EXPECT_EQ((*values)[0], bytes_of("22"));
  EXPECT_EQ((*values)[1], bytes_of("1"));
}

// Whoever asks which nodes have not come asks when the deadline has passed.
TEST(Store, AValueThatIsThereComesAlthoughTheDeadlineHasPassed) {
  Loop loop;
  ASSERT_TRUE(loop.client->set("a", bytes_of("1")));
  const std::vector<std::string> keys{"a"};
  bool found = false;
  for (int tries = 0; tries < 3 && !found; ++tries)  // a machine may be busy for longer than the least wait
    found = loop.client->get(keys, MonotonicClock::now() - 1).has_value();
  EXPECT_TRUE(found);
}

TEST(Store, ATimeoutNamesTheKeys) {
  Loop loop;
  const std::vector<std::string> keys{"nobody"};
  const auto values = loop.client->get(keys, MonotonicClock::now() + 20'000);
  ASSERT_FALSE(values);
  EXPECT_EQ(values.error().kind, ErrorKind::kTimeout);
  EXPECT_NE(values.error().what.find("nobody"), std::string::npos);
}

// A clock that leaves out a standstill says that time is left, although the machine's clock has come to the deadline.
TEST(Store, ADeadlineIsByTheClockOfTheLoop) {
  struct StillClock final : Clock {
    [[nodiscard]] TimeUs now_us() const override {
      ++read;
      read.notify_all();
      return 0;
    }
    mutable std::atomic<int> read{0};
  } clock;
  Reactor reactor(clock);
  StoreClient client(reactor, [](const wire::ToLeader&) {});
  Result<std::vector<std::vector<std::byte>>> values;
  const int before = clock.read;
  std::thread getter([&] {
    const std::vector<std::string> keys{"a"};
    values = client.get(keys, 2 * link::Store::kLeastPatienceUs);
  });
  for (int seen = clock.read; seen < before + 3; seen = clock.read) clock.read.wait(seen);  // until it has waited twice
  client.arrived({.request = 1, .values = {bytes_of("1")}});
  getter.join();
  ASSERT_TRUE(values) << values.error().message();
  EXPECT_EQ(values->front(), bytes_of("1"));
}

TEST(Store, AWorkersQuestionAfterItsSetSeesWhatItSet) {
  Reactor reactor;
  std::vector<std::string> sent;
  StoreClient client(reactor, [&sent](const wire::ToLeader& message) {
    sent.emplace_back(std::holds_alternative<wire::StoreSet>(message) ? "set" : "get");
  });
  client.set_now("a", bytes_of("1"));
  client.ask("a", [](std::span<const std::byte>) {});
  EXPECT_EQ(sent, (std::vector<std::string>{"set", "get"}));
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

struct Answers {
  std::vector<std::pair<Peer, wire::StoreValue>> given;
  StoreTable::Limits limits{.keys = 3, .bytes = 100, .waits = 3};
  StoreTable table{[this](const Peer& to, wire::StoreValue value) { given.emplace_back(to, std::move(value)); },
                   limits};
};

TEST(StoreTable, AnswersEachRequestOnceWhenTheLastOfItsKeysIsThere) {
  Answers answers;
  ASSERT_TRUE(answers.table.get("b", {.request = 7, .keys = {"x", "y"}}));
  ASSERT_TRUE(answers.table.get("c", {.request = 1, .keys = {"x"}}));
  ASSERT_TRUE(answers.table.set({"x", bytes_of("1")}));
  ASSERT_EQ(answers.given.size(), 1U);
  EXPECT_EQ(answers.given[0].first, "c");
  ASSERT_TRUE(answers.table.set({"y", bytes_of("2")}));
  ASSERT_TRUE(answers.table.set({"y", bytes_of("3")}));
  ASSERT_EQ(answers.given.size(), 2U);
  EXPECT_EQ(answers.given[1].first, "b");
  EXPECT_EQ(answers.given[1].second.request, 7U);
  EXPECT_EQ(answers.given[1].second.values, (std::vector{bytes_of("1"), bytes_of("2")}));
}

TEST(StoreTable, RefusesMoreThanItMayHold) {
  Answers keys;
  for (const auto* const key : {"a", "b", "c"}) EXPECT_TRUE(keys.table.set({key, bytes_of("1")}));
  EXPECT_TRUE(keys.table.set({"c", bytes_of("again")}));
  EXPECT_EQ(keys.table.set({"d", bytes_of("1")}).error().kind, ErrorKind::kExhausted);
  Answers bytes;
  EXPECT_TRUE(bytes.table.set({"a", std::vector<std::byte>(99)}));
  EXPECT_TRUE(bytes.table.set({"a", std::vector<std::byte>(9)}));
  EXPECT_TRUE(bytes.table.set({"b", std::vector<std::byte>(89)}));
  EXPECT_EQ(bytes.table.set({"c", bytes_of("1")}).error().kind, ErrorKind::kExhausted);
  Answers waits;
  EXPECT_TRUE(waits.table.get("b", {.request = 1, .keys = {"x", "y", "z"}}));
  EXPECT_EQ(waits.table.get("c", {.request = 1, .keys = {"x"}}).error().kind, ErrorKind::kExhausted);
}

TEST(StoreTable, WhatWasAnsweredIsNotWaitedForAnyMore) {
  Answers answers;
  ASSERT_TRUE(answers.table.get("b", {.request = 1, .keys = {"x", "y"}}));
  for (const auto* const key : {"x", "y"}) ASSERT_TRUE(answers.table.set({key, bytes_of("1")}));
  EXPECT_TRUE(answers.table.get("b", {.request = 2, .keys = {"z", "v"}})) << "two of three waits are over";
}

TEST(StoreTable, KeysThatAreTakenAwayLeaveTheirPlaceToOthers) {
  Answers answers;
  for (int round = 0; round < 100; ++round)
    for (const auto* const value : {"1", ""})
      for (const auto* const key : {"a", "b", "c"})
        ASSERT_TRUE(answers.table.set({key + std::to_string(round), bytes_of(value)})) << round;
  ASSERT_TRUE(answers.table.set({"never set", {}}));
  EXPECT_TRUE(answers.table.set({"d", std::vector<std::byte>(99)})) << "their bytes are free, too";
}

TEST(StoreTable, AKeyThatIsTakenAwayIsWaitedForAgain) {
  Answers answers;
  ASSERT_TRUE(answers.table.set({"x", bytes_of("1")}));
  ASSERT_TRUE(answers.table.get("b", {.request = 7, .keys = {"x", "y"}}));
  ASSERT_TRUE(answers.table.set({"x", {}}));
  ASSERT_TRUE(answers.table.set({"y", bytes_of("2")}));
  EXPECT_TRUE(answers.given.empty());
  ASSERT_TRUE(answers.table.set({"x", bytes_of("3")}));
  ASSERT_EQ(answers.given.size(), 1U);
  EXPECT_EQ(answers.given[0].second.values, (std::vector{bytes_of("3"), bytes_of("2")}));
}

// The time that this thread computes for a thousand sets of a key that nobody waits for: the least of several tries.
double us_of_sets(StoreTable& table) {
  const auto now_us = [] {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
  };
  double least = std::numeric_limits<double>::infinity();
  for (int tries = 0; tries < 5; ++tries) {
    const double begin_us = now_us();
    for (int i = 0; i < 1000; ++i) EXPECT_TRUE(table.set({"nobody waits for it", bytes_of("1")}));
    least = std::min(least, now_us() - begin_us);
  }
  return least;
}

// Many workers that each wait for many others: a set must not look at all that wait.
TEST(StoreTable, ASetCostsOnlyTheRequestsThatWaitForItsKey) {
  constexpr std::size_t kRanks = 100;
  std::size_t answered = 0;
  StoreTable table([&](const Peer&, const wire::StoreValue&) { ++answered; });
  const double alone_us = us_of_sets(table);
  for (std::size_t i = 0; i < kRanks * kRanks; ++i)
    ASSERT_TRUE(table.get("b", {.request = i, .keys = {std::to_string(i), std::to_string(i / kRanks)}}));
  // Who looks at ten thousand requests needs hundreds of times as long.
  EXPECT_LT(us_of_sets(table), 20 * alone_us);
  // The first hundred requests have both keys then. The others still wait for a key of their own.
  for (std::size_t i = 0; i < kRanks; ++i) ASSERT_TRUE(table.set({std::to_string(i), bytes_of("1")}));
  EXPECT_EQ(answered, kRanks);
}

}  // namespace
}  // namespace deft::daemon
