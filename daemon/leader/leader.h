// The leader's side of a job: on the daemon of rank 0's node, and there only.
//
// It gathers the nodes, checks that they agree, decides the order of all launches (it owns the job's schedulers) and of
// all collectives, keeps the rendezvous store, and decides what the cause of a failure was. It talks to the nodes, its
// own included, by the messages of daemon/wire/messages.h only. Reactor thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/model/tensors.h"
#include "core/model/update_schedule.h"
#include "core/sched/link_meter.h"
#include "core/sched/scheduler.h"
#include "daemon/base/reactor.h"
#include "daemon/base/settings.h"
#include "daemon/leader/plan_preserver.h"
#include "daemon/leader/scheduler_port.h"
#include "daemon/leader/store_table.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {

class Leader final : public SchedulerPort {
 public:
  using Send = std::function<void(const Peer& node, wire::ToNode)>;  // an empty peer: the leader's own node

  Leader(Reactor& reactor, std::string job, std::uint64_t incarnation, JobSettings settings, std::uint32_t world,
         Send send);
  ~Leader() override;

  void receive(const Peer& from, wire::ToLeader message);
  // What a message from there is checked against.
  [[nodiscard]] wire::LeaderFacts facts(const Peer& from) const;
  // A message from there is wrong, as `error` says: the job ends if it came from one of its nodes. False: nothing happened.
  bool refuse(const Peer& from, const Error& error);

  // From the leader's own node.
  void bucket_ready(std::uint32_t group, model::BucketIndex bucket, std::uint64_t generation) override;
  void stage_began(sched::Stage stage, std::uint64_t step, TimeUs waited_us) override;
  Result<void> flushed(std::uint32_t group, std::uint64_t step) override;
  // `link_us` and `overlapped` as TransferDone has them.
  void launch_finished(std::uint64_t number, std::optional<TimeUs> link_us, bool overlapped) override;

  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }
  [[nodiscard]] bool gathering() const { return state_ == State::kGathering; }
  [[nodiscard]] nlohmann::json status() const;

 private:
  enum class State : std::uint8_t { kGathering, kConnecting, kRunning, kFailed };

  struct Member {
    Peer peer;
    wire::Join join;
    TimeUs last_seen_us = 0;
    bool links_open = false;
    double step_us = 0;            // what a step takes its slowest worker; 0: not told yet
    std::set<std::uint32_t> left;  // ranks that ended cleanly
    [[nodiscard]] bool gone() const { return left.size() == join.ranks.size(); }
    [[nodiscard]] std::string describe(std::size_t node) const;
  };

  struct Group {
    std::vector<std::optional<wire::Declare>> declared;  // by node
    std::unique_ptr<sched::Scheduler> scheduler;         // once agreed
    std::shared_ptr<PlanPreserver> preserver;            // null: its plans are not judged
    std::vector<model::UpdateSchedule> schedules;        // of the buckets: what plans and rank 0's flushes make of them
    std::uint64_t newest = 0;                            // generation of bucket 0 that was ready
    std::uint64_t epoch = 0;                             // plans so far
    nlohmann::json plans = nlohmann::json::array();      // the newest ones, for the status
    nlohmann::json merging;                              // what is merged now, likewise; null: nothing was chosen yet
  };

  struct Outstanding {
    std::uint32_t group = 0;
    sched::Launch launch;
  };

  struct Operation {
    std::vector<std::optional<wire::OperationReady>> ready;  // by node
    TimeUs since_us = 0;
  };

  struct Suspicion {
    Error error;
    TimeUs since_us = 0;
    bool of_link = false;  // which others stand in for: only a lost node is the end
  };

  struct Progress {  // of a node on a link
    std::uint64_t finished_below = 0, started_below = 0;
    TimeUs told_us = 0;
  };

  struct LinkState {
    std::uint32_t epoch = 0;
    bool stopping = false;
    std::string lost;  // why, where it was
    Error error;
    TimeUs since_us = 0;
    std::uint32_t replacer = 0;
    std::set<std::uint32_t> replacers;
    std::vector<std::optional<std::uint64_t>> stopped;  // by node: what had finished there
    std::vector<Progress> progress;                     // by node
    std::uint64_t told_finished = 0;                    // below this all nodes know that all have finished
    std::map<std::uint64_t, std::uint64_t> ordered;     // bytes of launches that not all have finished
    std::uint64_t oldest = ~std::uint64_t{0};           // launch that not all have finished, and
    TimeUs moved_us = 0;                                // when it was last seen to change or to be owed by a node
  };

  // leader.cc: gathering, failing, watching
  void on_join(const Peer& from, wire::Join join);
  std::optional<Error> check_join(const wire::Join& join) const;
  [[nodiscard]] std::optional<Error> refusal() const;
  void begin_connecting();
  void on_links_open(Member& member);
  void on_failure(const wire::Failure& failure);
  void suspect(const Error& error, bool of_link);
  void on_leave(const wire::Leave& leave);
  void give_up_gathering();
  void tick();
  void check_suspicion(TimeUs now_us);
  void watch_operations(TimeUs now_us);
  void fail_job(const Error& error);
  void check(const Result<void>& done);  // an error ends the job
  void broadcast(const wire::ToNode& message);
  [[nodiscard]] const Member* member_of(const Peer& peer) const;

  // leader_tasks.cc: declarations, launches, collectives
  void on_declare(std::size_t node, wire::Declare declare);
  std::optional<std::string> difference(const Group& group) const;
  Result<wire::DeclareAgreed> agree(std::uint32_t id, Group& group);
  void pump(std::uint32_t group);
  void order_launches(std::uint32_t group);
  void measure(model::LinkIndex link, std::uint64_t bytes, TimeUs link_us, bool overlapped);
  void on_operation_ready(std::size_t node, wire::OperationReady ready);
  std::uint32_t link_for_operation();
  void start_operation(const std::string& name, const Operation& operation);
  [[nodiscard]] std::optional<Error> check_operation(const std::string& name, const Operation& operation) const;

  // leader_links.cc: links that die or stall
  [[nodiscard]] std::optional<std::uint32_t> substitute_for(std::uint32_t lost) const;
  void on_link_failed(std::uint32_t link, std::uint32_t epoch, const Error& error);
  void on_link_stopped(std::size_t node, const wire::LinkStopped& stopped);
  void on_link_progress(std::size_t node, const wire::NodeProgress& progress);
  void note_ordered(std::uint32_t link, std::uint64_t bytes);
  [[nodiscard]] TimeUs patience_us(std::uint32_t link, std::uint64_t finished, std::uint64_t started) const;
  void watch_links(TimeUs now_us);

  // leader_plans.cc: changes of plan
  [[nodiscard]] plan::Limits limits_of(const wire::Declare& declare) const;
  [[nodiscard]] std::shared_ptr<PlanPreserver> make_preserver(const plan::Limits& limits) const;
  void on_statistics(std::size_t node, const wire::GradientStatistics& statistics);
  void on_step_time(Member& member, const wire::StepTime& time);
  void order_plan(std::uint32_t group);
  void tell_fusion(std::uint32_t group);

  Reactor& reactor_;
  const std::string job_;
  const std::uint64_t incarnation_;
  const JobSettings settings_;
  const std::uint32_t world_;
  Send send_;
  State state_ = State::kGathering;
  std::vector<Member> members_;  // by node, once gathered
  StoreTable store_;
  std::map<std::uint32_t, Group> groups_;
  std::vector<sched::LinkMeter> links_;
  std::vector<LinkState> link_states_;  // of links_
  std::map<std::uint64_t, Outstanding> outstanding_;
  std::uint64_t next_number_ = 0;  // of launches and collectives, in the order in which nodes start them
  std::uint32_t next_link_ = 0;    // for collectives, in turn
  std::map<std::string, Operation> operations_;
  std::optional<Suspicion> suspicion_;
  std::uint64_t heartbeats_ = 0;
  Reactor::TimerId gather_timer_ = 0, tick_timer_ = 0;
};

// Ranks as people write them: "0-2, 5".
std::string describe_ranks(const std::vector<std::uint32_t>& ranks);

// The hash of a group's declaration and buckets, which every node computes for itself.
std::uint64_t group_hash(const std::vector<model::TensorSpec>& specs, const wire::DeclareAgreed& agreed);

}  // namespace deft::daemon
