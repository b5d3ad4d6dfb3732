// Links that the worker runs itself, against a daemon that says what it likes.
#include <gtest/gtest.h>

#include <map>

#include "tests/client/scripted_daemon.h"

namespace deft::test {
namespace {

constexpr std::size_t kTensors = 4;
constexpr std::uint32_t kLink = 5;
const ipc::LinkMessage kAnnounced{.header = {}, .link = kLink};

shm::StartRecord start(std::uint64_t launch, std::uint64_t offset, std::uint64_t bytes) {
  return {.link = kLink, .launch = launch, .offset_bytes = offset, .bytes = bytes};
}

void serve(Worker& worker) {
  worker.announce(kAnnounced, {"tcp", "lo", "127.0.0.1", "job/1/5"});
  worker.welcome();
  worker.grant_arena(arena_bytes(kTensors));
}

// Opens, declares and waits while the daemon does `then`: gives the error of the wait.
deft_error error_after(const std::function<void(Worker&)>& then) {
  ScriptedDaemon daemon([&](Worker& worker) {
    serve(worker);
    worker.pop();  // READY
    then(worker);
  });
  deft_error error{};
  deft_session* session = daemon.open(&error);
  if (session == nullptr) return error;
  deft_group* group = declare(session, kTensors, &error);
  EXPECT_EQ(deft_ready(group, 0, 1, 0, 0, &error), DEFT_OK) << error.message;
  EXPECT_NE(deft_wait(group, 0, 1, 0, &error), DEFT_OK);
  deft_close(session);
  return error;
}

// The ERROR that the worker sends.
std::string reported(Worker& worker) {
  const auto packet = worker.receive();
  const auto message = ipc::decode<ipc::ErrorMessage>(packet.bytes, ipc::MessageKind::kError, 3);
  EXPECT_TRUE(message) << message.error().message();
  return message ? message->texts[0] : "";
}

TEST(WorkerLinks, EachStartIsRunInOrderAndAnswered) {
  ScriptedDaemon daemon([](Worker& worker) {
    serve(worker);
    worker.pop();  // READY: a daemon starts nothing before it
    for (std::uint64_t i = 0; i < 20; ++i) worker.push(start(i, i % kTensors * kTensorBytes, kTensorBytes));
    for (std::uint64_t i = 0; i < 20; ++i) {
      const auto ran = worker.pop_as<shm::RanRecord>();
      EXPECT_EQ(ran.launch, i);
      EXPECT_EQ(ran.link, kLink);
    }
    worker.finish(0, kTensors, 0);
    worker.receive();  // GOODBYE
  });
  deft_error error{};
  deft_session* session = daemon.open(&error);
  ASSERT_NE(session, nullptr) << error.message;
  deft_group* group = declare(session, kTensors, &error);
  EXPECT_EQ(deft_ready(group, 0, kTensors, 0, 0, &error), DEFT_OK) << error.message;
  EXPECT_EQ(deft_wait(group, 0, kTensors, 0, &error), DEFT_OK) << error.message;
  deft_close(session);
}

TEST(WorkerLinks, AStartOutsideTheArenaIsNotRunButReported) {
  for (const auto& [offset, bytes] : {std::pair<std::uint64_t, std::uint64_t>{kTensors * kTensorBytes, 64},
                                      {0, (kTensors + 1) * kTensorBytes},
                                      {~std::uint64_t{0} - 31, 64},
                                      {64, ~std::uint64_t{0}}}) {
    const auto error = error_after([offset = offset, bytes = bytes](Worker& worker) {
      worker.push(start(1, offset, bytes));
      EXPECT_NE(reported(worker).find("outside of group 'group'"), std::string::npos);
      worker.send_error(ErrorKind::kViolation, "as reported");
    });
    EXPECT_NE(std::string(error.message).find("as reported"), std::string::npos) << error.message;
  }
}

TEST(WorkerLinks, AStartOfAnUnknownGroupOrBufferIsReported) {
  const shm::Record of_group = shm::StartRecord{.link = kLink, .group = 77, .launch = 1, .bytes = 64};
  const shm::Record of_buffer =
      shm::StartCollectiveRecord{.link = kLink, .staging_buffer = 77, .launch = 1, .bytes = 64};
  for (const auto& [record, told] :
       {std::pair{of_group, "a group that was not declared"}, {of_buffer, "staging buffers"}}) {
    error_after([record = record, told = std::string(told)](Worker& worker) {
      worker.push(record);
      EXPECT_NE(reported(worker).find(told), std::string::npos);
      worker.send_error(ErrorKind::kViolation, "as reported");
    });
  }
}

TEST(WorkerLinks, AStartOnALinkThatWasNotAnnouncedFailsTheSession) {
  const auto error = error_after([](Worker& worker) {
    auto record = start(1, 0, 64);
    record.link = kLink + 1;
    worker.push(record);
    worker.receive();
  });
  EXPECT_EQ(error.kind, DEFT_EVIOLATION);
  EXPECT_NE(std::string(error.message).find("a link that this worker does not run"), std::string::npos);
}

TEST(WorkerLinks, ALinkThatCannotOpenIsReportedAndFailsTheOpening) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.announce(kAnnounced, {"tcp", "eth0", "192.0.2.1", "job/1/5"});  // an address of nobody
    worker.welcome({0, 0});
    const std::string told = reported(worker);
    EXPECT_NE(told.find("cannot listen on 192.0.2.1"), std::string::npos) << told;
    worker.receive();
  });
  deft_error error{};
  EXPECT_EQ(daemon.open(&error, 0, 2), nullptr);
  EXPECT_EQ(error.kind, DEFT_EUNAVAILABLE);
  EXPECT_NE(std::string(error.message).find("open link tcp:eth0"), std::string::npos) << error.message;
}

// Serves the store of the job, in which rank 1 has published `invitation`, until `answers` keys were given, or the worker asks for
// something else.
void serve_store(Worker& worker, const std::string& invitation, int answers) {
  std::map<std::string, std::vector<std::byte>> store;
  const auto bytes = std::as_bytes(std::span(invitation));
  store["job/1/5/tcp/1"].assign(bytes.begin(), bytes.end());
  while (answers > 0) {
    const auto packet = worker.receive();
    const auto header = ipc::decode_header(packet.bytes);
    if (!header || (header->kind != ipc::MessageKind::kStoreSet && header->kind != ipc::MessageKind::kStoreGet)) return;
    const auto item = ipc::decode<ipc::StoreItem>(packet.bytes, header->kind, 1);
    ASSERT_TRUE(item) << item.error().message();
    const std::string& key = item->texts[0];
    if (header->kind == ipc::MessageKind::kStoreSet) store[key].assign(item->tail.begin(), item->tail.end());
    if (header->kind == ipc::MessageKind::kStoreSet || store.count(key) == 0) continue;
    const std::string_view texts[] = {key};
    worker.send(ipc::encode(item->fixed, ipc::MessageKind::kStoreValue, texts, store[key]));
    --answers;
  }
}

TEST(WorkerLinks, AJobThatFailsWhileALinkOpensIsNotWaitedForAndItsReasonIsTold) {
  ScriptedDaemon daemon([](Worker& worker) {
    worker.announce(kAnnounced, {"tcp", "lo", "127.0.0.1", "job/1/5"});
    worker.welcome({0, 1});
    serve_store(worker, "0123456789abcdef127.0.0.1 9", 2);  // rank 1 never calls
    worker.send_error(ErrorKind::kLost, "rank 1 died");
    for (auto packet = worker.receive(); !packet.bytes.empty(); packet = worker.receive())
      EXPECT_NE(ipc::decode_header(packet.bytes)->kind, ipc::MessageKind::kError) << "the daemon knows it already";
  });
  deft_error error{};
  EXPECT_EQ(daemon.open(&error, 0, 2), nullptr);
  EXPECT_EQ(error.kind, DEFT_ELOST);
  EXPECT_NE(std::string(error.message).find("rank 1 died"), std::string::npos) << error.message;
}

TEST(WorkerLinks, AMemberThatDoesNotComeIsNamedAtTheDeadline) {
  ScriptedDaemon daemon([&](Worker& worker) {
    worker.announce(kAnnounced, {"tcp", "lo", "127.0.0.1", "job/1/5"});
    worker.welcome({0, 0, 1}, 0, 4'000'000);
    serve_store(worker, "x", 1000);
  });
  deft_error error{};
  EXPECT_EQ(daemon.open(&error, 0, 3, "4s"), nullptr);
  EXPECT_EQ(error.kind, DEFT_ETIMEOUT);
  EXPECT_NE(std::string(error.message).find("1 rank of 3 did not come before the deadline: 2"), std::string::npos)
      << error.message;
}

}  // namespace
}  // namespace deft::test
