// What a worker asks for over its socket: what reaches the job, what is refused, and what only the request pays for.
#include "daemon/server/worker_requests.h"
#include "core/base/descriptor.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "core/ipc/wire.h"
#include "daemon/wire/codec.h"
#include "tests/daemon/fake_worker.h"

namespace deft::daemon {
namespace {

struct FakeJob final : JobPort {
  void declare(WorkerPort&, Declaration declaration) override { declared.push_back(std::move(declaration)); }
  void request(WorkerPort&, CollectiveRequest request) override { requested.push_back(std::move(request)); }
  void record(WorkerPort&, const shm::Record&) override {}
  void take_statistics(WorkerPort&, const ipc::Statistics& of_step) override { statistics.push_back(of_step); }
  void link_failed(WorkerPort&, const Error& error) override { failures.push_back(error); }
  void store_set(const std::string& key, std::span<const std::byte>) override { set.push_back(key); }
  void store_get(WorkerPort&, std::uint32_t request, const std::string& key) override {
    got.emplace_back(request, key);
  }
  void worker_ended(WorkerPort&, bool, const Error&) override {}
  void callback_failed(const Error&) override {}
  std::vector<Declaration> declared;
  std::vector<CollectiveRequest> requested;
  std::vector<ipc::Statistics> statistics;
  std::vector<Error> failures;
  std::vector<std::string> set;
  std::vector<std::pair<std::uint32_t, std::string>> got;
};

QuotaAmounts limits() {
  QuotaAmounts amounts = quota_limits(Config());
  amounts[static_cast<std::size_t>(Quota::kOperations)] = 3;
  amounts[static_cast<std::size_t>(Quota::kNameBytes)] = 10'000;
  amounts[static_cast<std::size_t>(Quota::kStoreBytes)] = 500'000'000;
  return amounts;
}

class WorkerRequestsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    far_ = ipc::MessageSocket(Descriptor(ends[0]));
    connection_.emplace(reactor_, ipc::MessageSocket(Descriptor(ends[1])), nullptr, WorkerConnection::Events{});
    requests_.emplace(worker_, *connection_, memory_, *account_);
    requests_->serve(job_);
  }
  template <typename Message>
  Result<void> ask(const Message& message, ipc::MessageKind kind, std::initializer_list<std::string_view> texts = {}) {
    ipc::Packet packet;
    packet.bytes = ipc::encode(message, kind, texts);
    return requests_->handle(packet, kind);
  }
  Result<void> set(std::string_view key, std::string_view value) {
    ipc::Packet packet;
    packet.bytes = ipc::encode(ipc::StoreItem{}, ipc::MessageKind::kStoreSet, std::array{key},
                               std::as_bytes(std::span(value.data(), value.size())));
    return requests_->handle(packet, ipc::MessageKind::kStoreSet);
  }
  Result<void> declare(std::uint32_t group, std::uint32_t tensors, std::string_view name = "sgd") {
    ipc::Declare message;
    message.group = group;
    message.tensors = tensors;
    message.slots = 1;
    message.reduce_op = static_cast<std::uint32_t>(model::ReduceOp::kSum);
    return ask(message, ipc::MessageKind::kDeclare, {name});
  }
  Result<void> tensor(std::uint32_t group, std::uint32_t index, std::string_view name = "w",
                      std::string_view codec = "") {
    ipc::DeclareTensor message;
    message.group = group;
    message.index = index;
    message.dtype = static_cast<std::uint32_t>(model::DType::kFloat32);
    message.dims = 1;
    message.shape[0] = 4;
    return ask(message, ipc::MessageKind::kDeclareTensor, {name, codec});
  }
  Result<void> buffer(std::uint32_t number, std::uint64_t bytes) {
    ipc::StagingBuffer message;
    message.buffer = number;
    message.bytes = bytes;
    return ask(message, ipc::MessageKind::kStagingBuffer);
  }
  static ipc::Operation all_reduce(std::uint64_t offset, std::uint64_t count) {
    ipc::Operation call;
    call.collective = ipc::Collective::kAllReduce;
    call.staging_buffer = 1;
    call.offset = offset;
    call.count = call.capacity = count;
    call.dtype = static_cast<std::uint32_t>(model::DType::kFloat32);
    call.reduce_op = static_cast<std::uint32_t>(model::ReduceOp::kSum);
    return call;
  }

  Reactor reactor_;
  MemoryBudget budget_{1 << 20};
  FakeWorker worker_;
  const std::shared_ptr<UserQuotas> quotas_ = std::make_shared<UserQuotas>(limits());
  const std::shared_ptr<QuotaAccount> account_ = std::make_shared<QuotaAccount>(quotas_, 7);
  WorkerMemory memory_{reactor_, budget_, account_};
  std::shared_ptr<FakeJob> job_ = std::make_shared<FakeJob>();
  ipc::MessageSocket far_;
  std::optional<WorkerConnection> connection_;
  std::optional<WorkerRequests> requests_;
};

bool is_violation(const Result<void>& result) { return !result && result.error().kind == ErrorKind::kViolation; }

TEST_F(WorkerRequestsTest, AGroupReachesTheJobWithItsLastTensor) {
  EXPECT_TRUE(declare(0, 2));
  EXPECT_TRUE(tensor(0, 0, "a"));
  EXPECT_TRUE(job_->declared.empty());
  EXPECT_TRUE(tensor(0, 1, "b"));
  ASSERT_EQ(job_->declared.size(), 1u);
  EXPECT_EQ(job_->declared[0].name, "sgd");
  ASSERT_EQ(job_->declared[0].tensors.size(), 2u);
  EXPECT_EQ(job_->declared[0].tensors[1].name, "b");
}

TEST_F(WorkerRequestsTest, DeclarationsOutOfOrderAreViolations) {
  EXPECT_TRUE(is_violation(tensor(0, 0)));
  EXPECT_TRUE(is_violation(declare(1, 1)));
  EXPECT_TRUE(declare(0, 2));
  EXPECT_TRUE(is_violation(declare(1, 1))) << "group 0 is still open";
  EXPECT_TRUE(is_violation(tensor(0, 1)));
  EXPECT_TRUE(is_violation(tensor(1, 0)));
}

TEST_F(WorkerRequestsTest, NamesOfGroupsTensorsAndCollectivesAreChecked) {
  EXPECT_EQ(declare(0, 1, std::string(256, 'x')).error().what, "the group's name has 256 bytes, more than 255");
  EXPECT_EQ(declare(0, 1, "\xff").error().what, "the group's name is not valid UTF-8");
  ASSERT_TRUE(declare(0, 1));
  EXPECT_EQ(tensor(0, 0, "a\nb").error().what, "a tensor's name holds control characters");
  EXPECT_TRUE(is_violation(tensor(0, 0, "a", std::string(129, 'x'))));
  EXPECT_TRUE(is_violation(tensor(0, 0, "a", "\xff")));
  ASSERT_TRUE(buffer(1, 4096));
  EXPECT_EQ(ask(all_reduce(0, 1), ipc::MessageKind::kOperation, {"", ""}).error().what,
            "the collective's name is empty");
  EXPECT_EQ(ask(all_reduce(0, 1), ipc::MessageKind::kOperation, {"x", "a\nb"}).error().what,
            "the text of the collective's terms holds control characters");
  EXPECT_TRUE(is_violation(ask(all_reduce(0, 1), ipc::MessageKind::kOperation, {"x"}))) << "no terms";
}

TEST_F(WorkerRequestsTest, ACollectiveMustLieInItsBuffer) {
  ASSERT_TRUE(buffer(1, 4096));
  EXPECT_TRUE(ask(all_reduce(0, 1024), ipc::MessageKind::kOperation, {"x", "shape [4, 256]"}));
  ASSERT_EQ(job_->requested.size(), 1u);
  EXPECT_EQ(job_->requested[0].terms, "shape [4, 256]");
  EXPECT_EQ(job_->requested[0].staging_buffer, memory_.find_buffer(1));
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [offset, count] : {std::pair<std::uint64_t, std::uint64_t>{0, 1025},
                                      {4, 1024},
                                      {2, 1},
                                      {4100, 0},
                                      {kMost - 3, 1},
                                      {0, kMost},
                                      {0, (kMost >> 2) + 2}})
    EXPECT_TRUE(is_violation(ask(all_reduce(offset, count), ipc::MessageKind::kOperation, {"x", ""})))
        << offset << " " << count;
  auto call = all_reduce(0, 1);
  call.staging_buffer = 2;
  EXPECT_TRUE(is_violation(ask(call, ipc::MessageKind::kOperation, {"x", ""}))) << "no such buffer";
  call = all_reduce(0, 1);
  call.dtype = 99;
  EXPECT_TRUE(is_violation(ask(call, ipc::MessageKind::kOperation, {"x", ""})));
  call = all_reduce(0, 1);
  call.collective = static_cast<ipc::Collective>(5);
  EXPECT_TRUE(is_violation(ask(call, ipc::MessageKind::kOperation, {"x", ""})));
  EXPECT_EQ(job_->requested.size(), 1u);
}

TEST_F(WorkerRequestsTest, MemoryThatIsUsedUpFailsTheRequestAndNotTheWorker) {
  EXPECT_TRUE(buffer(1, std::uint64_t{2} << 20));
  ASSERT_EQ(worker_.errors.size(), 1u);
  EXPECT_EQ(worker_.errors[0].first.kind, ErrorKind::kExhausted);
  EXPECT_EQ(worker_.errors[0].second, 1u);
  EXPECT_TRUE(is_violation(buffer(1, 0)));
  ASSERT_TRUE(buffer(2, 4096));
  EXPECT_TRUE(is_violation(buffer(2, 4096))) << "the number is taken";
  for (std::uint32_t number = 3; number < 300; ++number) ASSERT_TRUE(buffer(number, 64));
  EXPECT_EQ(worker_.errors.back().first.what, "this worker has 256 staging buffers already");
}

TEST_F(WorkerRequestsTest, ABufferThatIsGivenBackIsNoLongerCounted) {
  ASSERT_TRUE(buffer(1, 4096));
  EXPECT_GT(budget_.used_bytes(), 0u);
  ipc::StagingBuffer message;
  message.buffer = 1;
  EXPECT_TRUE(ask(message, ipc::MessageKind::kFreeStagingBuffer));
  EXPECT_EQ(budget_.used_bytes(), 0u);
}

TEST_F(WorkerRequestsTest, AUserHasSoManyCollectivesUnderWayAndNoMore) {
  ASSERT_TRUE(buffer(9, 4096));
  const auto reduce = [this](std::uint64_t operation) {
    auto call = all_reduce(0, 1);
    call.staging_buffer = 9;
    call.operation = operation;
    return ask(call, ipc::MessageKind::kOperation, {"x" + std::to_string(operation), ""});
  };
  for (const std::uint64_t operation : {11, 12, 13}) ASSERT_TRUE(reduce(operation));
  EXPECT_TRUE(is_violation(reduce(12))) << "its answer would be for two";
  ASSERT_TRUE(reduce(14)) << "only the collective fails";
  ASSERT_EQ(worker_.errors.size(), 1u);
  EXPECT_EQ(worker_.errors[0].second, 14u);
  EXPECT_EQ(worker_.errors[0].first.what, "user 7 has 3 collectives under way and may have 3; 1 more were asked for");
  EXPECT_NE(worker_.errors[0].first.fix.find("operations in the option user_limits"), std::string::npos);
  EXPECT_EQ(job_->requested.size(), 3u);
  requests_->done(12);
  requests_->done(12);
  requests_->done(99);
  EXPECT_TRUE(reduce(15));
  EXPECT_EQ(job_->requested.size(), 4u);
}

TEST_F(WorkerRequestsTest, TheNamesOfAUsersTensorsTakeSoMuchMemoryAndNoMore) {
  ASSERT_TRUE(declare(0, 1000));
  Result<void> result;
  std::uint32_t taken = 0;
  for (; result && taken < 1000; ++taken) result = tensor(0, taken, std::string(1000, 'n'));
  EXPECT_EQ(result.error().kind, ErrorKind::kExhausted) << "after " << taken;
  EXPECT_NE(result.error().fix.find("names in the option user_limits"), std::string::npos);
}

// One message tells the leader of all tensors of a group.
TEST_F(WorkerRequestsTest, AGroupThatFillsMoreThanAMessageIsRefusedAndOneThatFitsIsNot) {
  const auto quotas = std::make_shared<UserQuotas>(quota_limits(Config()));
  QuotaAccount account(quotas, 7);
  requests_.emplace(worker_, *connection_, memory_, account);
  requests_->serve(job_);
  const std::string name(ipc::kMaxNameBytes, 'n');
  const std::uint32_t fit = (wire::kMaxMessageBytes - 4096) / (name.size() + 42);
  const auto declare_all = [&](std::uint32_t group, std::uint32_t tensors) {
    Result<void> result = declare(group, tensors);
    for (std::uint32_t i = 0; result && i < tensors; ++i) result = tensor(group, i, name);
    return result;
  };
  ASSERT_TRUE(declare_all(0, fit));
  ASSERT_EQ(job_->declared.size(), 1u);
  wire::Declare message{.group = 0, .name = "sgd", .tensors = job_->declared[0].tensors};
  EXPECT_LE(wire::encode({.job = std::string(255, 'j')}, wire::ToLeader(message)).size(), wire::kMaxMessageBytes);
  const auto refused = declare_all(1, fit + 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalid);
  EXPECT_NE(refused.error().what.find("a message between daemons has at most 16777216"), std::string::npos);
  EXPECT_EQ(job_->declared.size(), 1u);
  requests_.reset();
}

TEST_F(WorkerRequestsTest, WhatAUserHasIsKnownAndGivenBack) {
  ASSERT_TRUE(buffer(1, 4096));
  ASSERT_TRUE(declare(0, 1));
  ASSERT_TRUE(tensor(0, 0));
  const auto has = quotas_->status();
  ASSERT_EQ(has.size(), 1u);
  EXPECT_EQ(has[0]["user"], 7);
  EXPECT_EQ(has[0]["memory"], 4096);
  EXPECT_EQ(has[0]["descriptors"], 1);
  EXPECT_GT(has[0]["names"], 0);
  auto kept = memory_.find_buffer(1);
  memory_.free_buffer(1);
  EXPECT_EQ(quotas_->status()[0]["memory"], 4096) << "somebody still uses it";
  kept.reset();
  EXPECT_EQ(quotas_->status()[0]["memory"], 0);
}

TEST_F(WorkerRequestsTest, MuchMemoryIsMadeAndGivenBackWithoutTheLoopWaiting) {
  constexpr std::uint64_t kBytes = std::uint64_t{16} << 20;
  MemoryBudget budget{2 * kBytes};
  std::optional<WorkerMemory> memory(std::in_place, reactor_, budget, account_);
  std::vector<WorkerMemory::Made> made;
  const auto keep = [&](WorkerMemory::Made arena) { made.push_back(std::move(arena)); };
  memory->make_arena(0, kBytes, keep);
  memory->make_arena(1, kBytes, keep);
  memory->make_arena(2, kBytes, keep);
  EXPECT_TRUE(made.empty()) << "the kernel clears it while the loop goes on";
  while (made.size() < 3) reactor_.run_once();
  EXPECT_EQ(std::ranges::count_if(made, [](const auto& one) { return one.has_value(); }), 2);
  const auto wait_for = [&](std::uint64_t bytes) {
    while (budget.used_bytes() != bytes) reactor_.run_once();
    const auto charged = [this] {
      const auto users = quotas_->status();
      return users.empty() ? 0 : users[0]["memory"].get<std::uint64_t>();
    };
    while (charged() != bytes) reactor_.run_once();
  };
  wait_for(2 * kBytes);
  made.clear();
  memory->make_arena(3, kBytes, keep);
  memory.reset();
  wait_for(0);
  EXPECT_TRUE(made.empty()) << "the worker was gone when this one was there";
}

TEST_F(WorkerRequestsTest, RingsAreMadeWithoutTheLoopWaitingAndCountAsTheUsersMemory) {
  MemoryBudget budget{shm::kControlSegmentBytes};
  std::optional<WorkerMemory> memory(std::in_place, reactor_, budget, account_);
  std::vector<Result<void>> made;
  const auto keep = [&](Result<void> rings) { made.push_back(std::move(rings)); };
  memory->make_rings(keep);
  EXPECT_TRUE(made.empty()) << "the kernel clears them while the loop goes on";
  EXPECT_EQ(memory->rings(), nullptr);
  while (made.empty()) reactor_.run_once();
  ASSERT_TRUE(made[0]) << made[0].error().message();
  EXPECT_EQ(memory->rings()->bytes() / 4096, (shm::kControlSegmentBytes + 4095) / 4096);
  EXPECT_EQ(quotas_->status()[0]["memory"], shm::kControlSegmentBytes);
  WorkerMemory another(reactor_, budget, account_);
  another.make_rings(keep);
  while (made.size() < 2) reactor_.run_once();
  EXPECT_EQ(made[1].error().kind, ErrorKind::kExhausted) << "the budget is used up";
  EXPECT_EQ(another.rings(), nullptr);
  memory.reset();
  EXPECT_EQ(budget.used_bytes(), 0u);
  memory.emplace(reactor_, budget, account_);
  memory->make_rings(keep);
  memory.reset();
  const auto charged = [this] {
    const auto users = quotas_->status();
    return users.empty() || users[0]["memory"] == 0 ? 0 : 1;
  };
  while (charged() + budget.used_bytes() != 0) reactor_.run_once();
  EXPECT_EQ(made.size(), 2u) << "the worker was gone when these were there";
}

TEST_F(WorkerRequestsTest, MemoryThatIsBeingMadeOutlivesTheDaemonsBudget) {
  auto budget = std::make_unique<MemoryBudget>(std::uint64_t{64} << 20);
  const MemoryBudget count = *budget;
  const auto account = std::make_shared<QuotaAccount>(quotas_, 8);
  std::optional<WorkerMemory> memory(std::in_place, reactor_, *budget, account);
  memory->make_arena(0, std::uint64_t{16} << 20, [](const WorkerMemory::Made&) {});
  memory.reset();
  budget.reset();
  while (account.use_count() > 1) reactor_.run_once();
  EXPECT_EQ(count.used_bytes(), 0u);
}

// A thread that gives back large memory may do so while the daemon ends.
TEST_F(WorkerRequestsTest, MemoryMayOutliveTheEventLoop) {
  const MemoryBudget budget{std::uint64_t{64} << 20};
  WorkerMemory::Memory kept;
  auto reactor = std::make_unique<Reactor>();
  {
    WorkerMemory memory(*reactor, budget, account_);
    memory.make_arena(0, std::uint64_t{16} << 20,
                      [&](const WorkerMemory::Made& made) { kept = made.value_or(nullptr); });
    while (!kept) reactor->run_once();
  }
  reactor.reset();
  kept.reset();
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST_F(WorkerRequestsTest, TheStoreTakesSoManyItemsOfAWorkerAndNoMore) {
  const std::string key(ipc::kMaxNameBytes, 'k');
  EXPECT_TRUE(set(key, "1"));
  EXPECT_EQ(job_->set, std::vector<std::string>{key});
  EXPECT_FALSE(set(key + "k", "1"));
  EXPECT_FALSE(ask(ipc::StoreItem{}, ipc::MessageKind::kStoreGet, {"\xff"}));
  Result<void> result;
  int taken = 0;
  for (; result && taken < 70'000; ++taken) result = ask(ipc::StoreItem{}, ipc::MessageKind::kStoreGet, {"key"});
  EXPECT_EQ(result.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(result.error().fix.find("has joined"), std::string::npos) << result.error().fix;
  EXPECT_EQ(job_->got.size() + job_->set.size(), 65536u);
  EXPECT_TRUE(set(key, "2")) << "it has that key already";
  EXPECT_FALSE(set("another", "1"));
  requests_->store_answered();
  EXPECT_TRUE(ask(ipc::StoreItem{}, ipc::MessageKind::kStoreGet, {"key"})) << "one question was answered";
}

TEST_F(WorkerRequestsTest, AKeyOfTheStoreMayBeSetForEver) {
  for (int time = 0; time < 70'000; ++time) ASSERT_TRUE(set("newest step", "7")) << time;
}

// join() does so in each epoch of a training.
TEST_F(WorkerRequestsTest, KeysOfTheStoreThatAreTakenAwayCostNothingAnyMore) {
  ASSERT_TRUE(set("kept", "1"));
  const auto before = quotas_->status()[0]["store"];
  for (int round = 0; round < 100; ++round)
    for (const std::string_view value : {"1", ""})
      for (int number = 0; number < 700; ++number)
        ASSERT_TRUE(set(std::to_string(round) + "." + std::to_string(number), value)) << round << " " << number;
  EXPECT_EQ(job_->set.size(), 140'001u) << "the leader hears of all";
  EXPECT_EQ(quotas_->status()[0]["store"], before);
  ASSERT_TRUE(set("never set", ""));
  EXPECT_EQ(quotas_->status()[0]["store"], before);
}

TEST_F(WorkerRequestsTest, StatisticsAndFailuresOfLinksAreChecked) {
  ipc::Statistics statistics;
  EXPECT_TRUE(is_violation(ask(statistics, ipc::MessageKind::kStatistics))) << "group 0 is not declared";
  ASSERT_TRUE(declare(0, 1));
  EXPECT_TRUE(ask(statistics, ipc::MessageKind::kStatistics));
  statistics.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(ask(statistics, ipc::MessageKind::kStatistics)) << "a training can come to that";
  statistics.learning_rate = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(is_violation(ask(statistics, ipc::MessageKind::kStatistics)));
  ipc::ErrorMessage message;
  message.error_kind = 12345;
  EXPECT_TRUE(ask(message, ipc::MessageKind::kError, {"what", "fix", "where"}));
  ASSERT_EQ(job_->failures.size(), 1u);
  EXPECT_EQ(job_->failures[0].kind, ErrorKind::kInternal);
  EXPECT_TRUE(is_violation(ask(message, ipc::MessageKind::kError, {"\xff", "", ""})));
}

TEST_F(WorkerRequestsTest, KindsThatOnlyADaemonSendsAreViolations) {
  for (const auto kind : {ipc::MessageKind::kWelcome, ipc::MessageKind::kDeclared, ipc::MessageKind::kStagingBufferMade,
                          static_cast<ipc::MessageKind>(0), static_cast<ipc::MessageKind>(~0U)})
    EXPECT_TRUE(is_violation(ask(ipc::Text{}, kind)));
}

// Of memory that a segment takes.
std::int64_t blocks_of(const Descriptor& segment) {
  struct stat info {};
  return fstat(segment.get(), &info) == 0 ? info.st_blocks : -1;
}

TEST_F(WorkerRequestsTest, AReleasedGroupGivesItsMemoryAndItsNamesBack) {
  for (std::uint32_t group = 0; group < 400; ++group) {  // of which a hundred would use the names up
    ASSERT_TRUE(declare(group, 1)) << group;
    ASSERT_TRUE(tensor(group, 0)) << group;
    Descriptor of_worker;  // which keeps it
    memory_.make_arena(group, 4096, [&](const WorkerMemory::Made& made) {
      ASSERT_TRUE(made);
      (*made)->data()[0] = std::byte{1};
      of_worker = Descriptor(dup((*made)->descriptor()));
    });
    EXPECT_GT(blocks_of(of_worker), 0);
    EXPECT_EQ(quotas_->status()[0]["memory"], 4096);
    EXPECT_EQ(budget_.used_bytes(), 4096u);
    for (const char* const twice : {"once", "again"}) {
      requests_->released(group);
      EXPECT_TRUE(quotas_->status().empty()) << twice << ": a user with nothing is not kept";
      EXPECT_EQ(budget_.used_bytes(), 0u) << twice;
      EXPECT_EQ(blocks_of(of_worker), 0) << twice;
    }
  }
  EXPECT_TRUE(is_violation(declare(0, 1))) << "a number is never used again";
}

TEST_F(WorkerRequestsTest, OnlyGroupsThatAreInUseCount) {
  QuotaAmounts many = limits();
  many[static_cast<std::size_t>(Quota::kNameBytes)] = 1 << 24;
  quotas_->set_limits(many);
  for (std::uint32_t group = 0; group < wire::kMaxGroups; ++group) ASSERT_TRUE(declare(group, 1) && tensor(group, 0));
  const auto one_more = declare(wire::kMaxGroups, 1);
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.error().kind, ErrorKind::kExhausted);
  EXPECT_NE(one_more.error().what.find("1024 groups of gradients that are not released"), std::string::npos);
  requests_->released(3);
  EXPECT_TRUE(declare(wire::kMaxGroups, 1));
}

TEST_F(WorkerRequestsTest, ARequestOfAJobThatIsGoneDoesNothing) {
  job_.reset();
  EXPECT_TRUE(declare(0, 1));
  EXPECT_TRUE(tensor(0, 0));
}

}  // namespace
}  // namespace deft::daemon
