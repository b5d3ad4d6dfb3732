// A daemon's jobs without a network, a process or a thread: everything is real from ControlInbox and JobTable downwards, but for the
// workers, the links, the clock, and the wire to other daemons. The test plays these, and the job's leader.
//
//   FakeDaemon daemon;                            // of ranks 2 and 3 of four; ranks 0 and 1 are on node 0, which leads
//   daemon.bring_to(FakeDaemon::Stage::kRunning);
//   daemon.tell(wire::Heartbeat{});               // the leader says something
//   daemon.advance(1'000'000);                    // a second passes
//   daemon.sent<wire::Join>();                    // what the leader heard
//
// The group, the collectives and the messages are those of control_messages.h.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/server/control_inbox.h"
#include "daemon/server/job_table.h"
#include "tests/daemon/control_messages.h"
#include "tests/daemon/fake_control_port.h"
#include "tests/daemon/fake_links.h"
#include "tests/daemon/fake_worker.h"

namespace deft::daemon {

class FakeDaemon {
 public:
  enum class Stage : std::uint8_t {
    kAlone,       // no worker is here
    kJoining,     // both workers are here, and JOIN was sent
    kConnecting,  // JOINED came, links open
    kRunning,     // BEGIN came; the group is declared, the collectives and a key of the store are asked for
    kAgreed,      // the group has buckets
    kBusy,        // gradients of two steps are ready; launch 0 is done, launch 1 runs
    kStopping,    // the leader has stopped link 1
    kReleased,    // both workers have released the group
  };
  // In which there is a job that hears its leader.
  static constexpr Stage kStages[] = {Stage::kJoining, Stage::kConnecting, Stage::kRunning, Stage::kAgreed,
                                      Stage::kBusy,    Stage::kStopping,   Stage::kReleased};
  static constexpr char kLeader[] = "10.0.0.1:29610";
  static constexpr std::uint64_t kIncarnation = 7;

  // `leads`: the workers are ranks 0 and 1, and the leader is in this daemon.
  explicit FakeDaemon(bool leads = false)
      : first(leads ? 0 : 2, 4, 0, 2),
        second(leads ? 1 : 3, 4, 1, 2),
        jobs({reactor, control, config, leads ? "host0" : "host1", fake_links()}, kIncarnation,
             [this] { empty = true; }) {
    for (FakeWorker* const worker : {&first, &second}) {
      worker->attached.leader = kLeader;
      worker->attached.settings = "policy=knapsack\nmax_merged_steps=4\nmax_stale_percent=100\ntimeout=9s\n";
    }
  }

  // Each stage passes through those before it.
  void bring_to(Stage stage) {
    if (stage >= Stage::kJoining) attach(first), attach(second);
    if (stage >= Stage::kConnecting) tell(samples::messages_to_node().front());
    if (stage >= Stage::kRunning) run();
    if (stage >= Stage::kAgreed) tell(samples::agreement());
    if (stage >= Stage::kBusy) reduce();
    if (stage >= Stage::kStopping) tell(wire::LinkStop{1, 0, {ErrorKind::kLost, "connection reset", "", {}}});
    if (stage >= Stage::kReleased) release();
  }

  Result<void> attach(FakeWorker& worker) {
    auto attached = jobs.attach(worker);
    turn();
    return attached;
  }
  // A message of the leader, or of `from`.
  void tell(const wire::ToNode& message, const Peer& from = "leader") {
    deliver(from, wire::encode({.job = "job", .incarnation = kIncarnation}, message));
  }
  void deliver(const Peer& from, const std::string& bytes) {
    inbox.receive(from, std::as_bytes(std::span(bytes.data(), bytes.size())));
    turn();
  }
  // Calls the job for a worker, as its session does.
  template <typename Call>
  void ask(FakeWorker& worker, const Call& call) {
    run_for(worker.job, "a test", [&] {
      if (const auto job = worker.job.lock()) call(*job);
    });
    turn();
  }
  // What is posted and due.
  void turn() {
    while (reactor.run_once()) {
    }
  }
  void advance(TimeUs us) {
    constexpr TimeUs kStepUs = 50'000;
    for (; us > 0; us -= kStepUs) {
      clock.advance(std::min(us, kStepUs));
      turn();
    }
  }
  void release() {
    for (FakeWorker* const worker : {&first, &second})
      ask(*worker, [&](JobPort& job) { job.record(*worker, shm::ReleaseRecord{}); });
  }
  void open_links() {
    for (FakeDriver* const driver : drivers.drivers)
      if (driver != nullptr) driver->opened();
    turn();
  }
  // Every launch that the links have started ends, after all memory that it uses was written.
  void finish_launches() {
    for (std::size_t link = 0; link < drivers.drivers.size(); ++link)
      for (std::size_t i = 0; drivers.drivers[link] != nullptr && i < drivers.drivers[link]->transfers.size(); ++i)
        write(drivers.drivers[link]->transfers[i]);
    for (std::size_t link = 0; link < drivers.drivers.size(); ++link) {
      if (drivers.drivers[link] == nullptr) continue;
      const auto started = std::exchange(drivers.drivers[link]->started, {});
      for (const auto token : started)
        if (drivers.drivers[link] != nullptr) drivers.drivers[link]->done(token);
    }
    turn();
  }

  // Messages of one kind that went to the leader. Those of a node that leads itself are not seen here.
  template <typename Message>
  [[nodiscard]] std::vector<Message> sent() const {
    std::vector<Message> all;
    for (const auto& [peer, bytes] : control.sent) {
      const auto received = wire::Received::parse(std::as_bytes(std::span(bytes.data(), bytes.size())));
      auto message = received->to_leader(facts(received->is_join()));
      if (message && std::holds_alternative<Message>(*message)) all.push_back(std::get<Message>(std::move(*message)));
    }
    return all;
  }
  // "attaching", "joining", "connecting" or "running"; "ended" if the job is not in the list any more.
  [[nodiscard]] std::string state() const {
    const auto json = jobs.status();
    return json.empty() ? "ended" : json[0]["state"].get<std::string>();
  }
  // With which the job ended; empty if it has not.
  [[nodiscard]] std::string end() const {
    for (const auto& [error, operation] : first.errors)
      if (operation == 0) return error.message();
    return "";
  }

  ManualClock clock;
  Reactor reactor{clock};
  FakeControlPort control;
  Config config;
  FakeDrivers drivers;
  FakeWorker first, second;
  bool empty = false;  // the last job is gone
  std::optional<Error> no_links;
  JobTable jobs;
  ControlInbox inbox{control, jobs, clock};

 private:
  LinkMaker fake_links() {
    return {[this](const Membership&, const std::string&) {
              LinkChoice choice;
              if (no_links) choice.refusal.emplace(*no_links);
              if (!no_links) choice.specs = {{"gloo", "eth0", "10.0.0.2"}, {"gloo", "eth1", "10.0.1.2"}};
              return choice;
            },
            [this](const LinkSurroundings&) {
              return
                  [this](DriverRequest request) { return std::make_unique<FakeDriver>(drivers, std::move(request)); };
            }};
  }
  static wire::LeaderFacts facts(bool join) {
    auto facts = samples::leader_facts(!join);
    facts.link_epochs = {1, 1};
    return facts;
  }
  CollectiveRequest request(const char* name, ipc::Collective collective, std::uint64_t count, std::uint64_t capacity) {
    CollectiveRequest request{.name = name, .call = {}, .staging_buffer = buffer_};
    request.call.operation = 11;
    request.call.collective = collective;
    request.call.count = count;
    request.call.capacity = capacity;
    return request;
  }
  void run() {
    open_links();
    tell(wire::Begin{});
    const auto declared = std::get<wire::Declare>(samples::messages_to_leader().at(2));
    for (FakeWorker* const worker : {&first, &second}) {
      ask(*worker, [&](JobPort& job) {
        job.declare(*worker, {declared.group, declared.name, declared.tensors, declared.slots, declared.op, 2});
        job.request(*worker, request("gather", ipc::Collective::kAllGather, worker == &first ? 5 : 6, 18));
        job.request(*worker, request("sum", ipc::Collective::kAllReduce, 8, 0));
      });
    }
    ask(first, [&](JobPort& job) { job.store_get(first, 1, "peers"); });
  }
  void reduce() {
    for (FakeWorker* const worker : {&first, &second})
      for (const std::uint64_t step : {0, 1})
        ask(*worker, [&](JobPort& job) {
          job.record(
              *worker,
              shm::ReadyRecord{
                  .slot = static_cast<std::uint32_t>(step), .tensors = 2, .generation = step, .last_step = step});
        });
    tell(wire::LaunchOrder{0, {samples::launch(0, 0, 0), samples::launch(1, 1, 0)}});
    drivers.drivers[0]->done(0);
    drivers.drivers[0]->started.clear();
    turn();
  }
  static void write(const Transfer& transfer) {
    std::size_t bytes = transfer.count * model::dtype_bytes(transfer.dtype);
    if (transfer.collective == ipc::Collective::kAllGather) {
      bytes = 0;
      for (const std::size_t block : transfer.node_bytes) bytes += block;
    }
    for (std::byte* const buffer : transfer.buffers)
      if (buffer != nullptr) std::fill_n(buffer, bytes, std::byte{1});
  }

  std::shared_ptr<shm::Segment> buffer_ =
      std::make_shared<shm::Segment>(shm::Segment::create("test-buffer", 4096).value());
};

inline ::testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' does not say '" << part << "'";
}

// The answers of a leader that lives, while time passes.
inline void advance_with_heartbeats(FakeDaemon& daemon, TimeUs us) {
  constexpr TimeUs kPauseUs = 500'000;
  for (; us > 0; us -= kPauseUs) {
    daemon.advance(kPauseUs);
    daemon.tell(wire::Heartbeat{.reply = true});
  }
}

}  // namespace deft::daemon
