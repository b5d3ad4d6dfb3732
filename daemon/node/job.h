// One job on one node: its local workers, its links, its gradients and collectives, and how it ends.
//
// Life: workers attach -> all local ones are here -> the node joins at the leader -> links open -> running -> ended.
// The job that holds rank 0 also owns the Leader. Messages of daemon/wire/messages.h are the only way between a node and its
// leader, also on the leader's own node, where they go through the reactor. Reactor thread.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/sched/step_time.h"
#include "daemon/base/settings.h"
#include "daemon/channel/daemon_driver.h"
#include "daemon/channel/in_process_driver.h"
#include "daemon/channel/link_queue.h"
#include "daemon/leader/leader.h"
#include "daemon/node/gradients.h"
#include "daemon/node/store_client.h"
#include "daemon/node/worker_port.h"
#include "daemon/wire/control_plane.h"

namespace deft::daemon {

class Job;

struct JobContext {  // the daemon's parts that jobs share
  Reactor& reactor;
  ControlPlane& control;
  const Config& config;
  std::string host;
  std::uint64_t daemon_epoch = 0;
  std::function<std::uint64_t()> make_incarnation;
  std::function<void(Job&)> on_ended;  // the job and its executors can be put away
};

class Job final : public JobPort, public std::enable_shared_from_this<Job> {
 public:
  // `first` is the worker whose HELLO made the job; the job belongs to its user.
  Job(JobContext& context, const WorkerPort& first, JobSettings settings);
  ~Job() override;

  // A worker of this job. An error refuses this worker; where a new job disagrees with itself, the job fails too.
  Result<void> attach(WorkerPort& session);
  void declare(WorkerPort& session, Declaration declaration) override;
  void request(WorkerPort& session, OperationRequest request) override;
  void record(WorkerPort& session, const shm::Record& record) override;
  void take_statistics(WorkerPort& session, const ipc::Statistics& statistics) override;
  void link_failed(WorkerPort& session, const Error& error) override;
  void store_set(const std::string& key, std::span<const std::byte> value) override;
  void store_get(WorkerPort& session, std::uint32_t request, const std::string& key) override;
  void worker_ended(WorkerPort& session, bool clean, const Error& reason) override;

  [[nodiscard]] bool accepts(const Peer& from, const wire::Received& received) const;
  // A wrong message ends the job if it came from one of its nodes. False: the message was dropped.
  bool receive(const Peer& from, const wire::Received& received);
  // The daemon there speaks another version of the protocol, as `error` says: it cannot take part.
  void peer_mismatched(const Peer& from, const wire::Header& header, const Error& error);

  void fail_job(const Error& error);  // decided here: tells the leader, who tells all
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool ended() const { return state_ == State::kEnded; }
  [[nodiscard]] bool joinable() const { return state_ == State::kAttaching; }
  [[nodiscard]] bool leaving() const { return !left_.empty(); }
  [[nodiscard]] bool executors_finished();
  [[nodiscard]] nlohmann::json status() const;

 private:
  enum class State : std::uint8_t { kAttaching, kJoining, kConnecting, kRunning, kEnded };

  struct Worker {
    WorkerPort* session = nullptr;  // null: not here yet, or gone
    std::uint32_t rank = 0;
    pid_t pid = 0;
    bool left = false;  // ended cleanly
    sched::StepTime steps = {};
  };

  struct Group {
    std::vector<std::optional<Declaration>> declared;  // by local index
    std::unique_ptr<Gradients> gradients;
    std::vector<std::shared_ptr<shm::Segment>> arenas;  // by local index; outlive their sessions
    bool agreed = false;
    std::vector<std::optional<ipc::Statistics>> statistics;  // by local index: of the newest step
  };

  struct Operation {
    std::vector<std::optional<OperationRequest>> requests;  // by local index
    std::vector<std::uint64_t> counts;                      // from OperationStart
    bool started = false;
    TimeUs since_us = 0;
  };

  struct Suspicion {
    Error error;
    TimeUs since_us = 0;
  };

  class Facts;  // job_facts.cc: what messages of the leader are checked against

  // job.cc: life
  void on_deadline();
  void join();
  void send_join();
  void on_joined(wire::Joined joined);
  Result<void> choose_links();
  void open_links();
  std::unique_ptr<LinkDriver> daemon_driver(std::size_t link, const link::LinkSpec& spec, TimeUs deadline_us);
  DaemonDriver::Open opener(std::size_t link, const link::LinkSpec& spec, TimeUs deadline_us) const;
  void on_link_open(std::size_t link, Result<void> result);
  void on_begin();
  void end(const Error& error, bool clean);
  void to_leader(wire::ToLeader message);
  void send_from_leader(const Peer& node, wire::ToNode message);
  bool receive_for_leader(const Peer& from, const wire::Received& received);
  void handle(wire::ToNode message);
  [[nodiscard]] std::size_t index_of(const WorkerPort& session) const;
  [[nodiscard]] Result<void> check_attach(const Attachment& a) const;
  [[nodiscard]] std::string leader_name() const;

  // job_gradients.cc: groups and launches
  void send_declaration(std::uint32_t id, const Declaration& declaration);
  void on_declare_agreed(const wire::DeclareAgreed& agreed);
  Result<std::vector<model::Bucket>> buckets_of(const wire::DeclareAgreed& agreed, const Gradients& gradients) const;
  void on_ready(std::size_t worker, WorkerPort& session, const shm::ReadyRecord& ready);
  void on_stage(std::size_t worker, const shm::StageRecord& began);
  void tell_step_time();
  void on_flush(WorkerPort& session, std::size_t worker, const shm::FlushRecord& flush);
  void on_plan_order(const wire::PlanOrder& order);
  Result<std::vector<shm::Record>> checked_plan(const wire::PlanOrder& order) const;
  void on_launch_order(const wire::LaunchOrder& order);
  bool take_number(std::uint64_t number);
  void pump(std::size_t link);
  [[nodiscard]] bool can_start(const SubCommTask& launch) const;
  [[nodiscard]] bool is_merged(const SubCommTask& launch) const;  // it runs on over other buckets
  [[nodiscard]] Transfer gradient_transfer(const SubCommTask& launch) const;
  void on_done(std::size_t link, TransferDone done);
  void finish_part(const SubCommTask& launch);

  // job_operations.cc: collectives
  void on_operation_start(wire::OperationStart start);
  void on_operation_failed(const wire::OperationFailed& failed);
  [[nodiscard]] Transfer operation_transfer(const SubCommTask& launch) const;
  void finish_operation(const std::string& name);

  // job_worker_links.cc: links that the workers run
  [[nodiscard]] std::string link_prefix(std::size_t link) const;
  [[nodiscard]] JobLinks links_of_job() const;
  std::unique_ptr<LinkDriver> in_process_driver(std::size_t link);
  [[nodiscard]] shm::StartRecord gradient_record(const SubCommTask& launch) const;
  [[nodiscard]] InProcessDriver::Records operation_records(const SubCommTask& launch) const;
  Result<void> on_ran(std::size_t worker, const shm::RanRecord& ran);

  // job_lost_links.cc: links that are lost while others are left
  [[nodiscard]] bool can_lose(std::size_t link) const;
  [[nodiscard]] Transfer transfer_of(const SubCommTask& launch) const;
  void keep(std::size_t link, const SubCommTask& launch, std::size_t transferred);
  void on_link_error(std::size_t link, const Error& error);
  void on_link_stop(const wire::LinkStop& stop);
  void await_stop(std::size_t link);
  void on_link_replaced(const wire::LinkReplaced& replaced);
  void on_link_progress(const wire::JobProgress& progress);
  void tell_progress();

  // job_watch.cc: who is late, who is lost
  void tick();
  void watch_leader(TimeUs now_us);
  void watch_gradients(TimeUs now_us);
  void watch_declarations();
  void watch_operations(TimeUs now_us);
  void report_owed(const Gradients& gradients, const Owed& owed, TimeUs now_us);
  void report_stall(std::uint32_t rank, const std::string& what, std::uint64_t step, TimeUs age_us);
  void on_stalled(const wire::Stalled& stalled);
  void on_waiting(const wire::Waiting& waiting);
  void on_failure(const wire::Failure& failure);
  void on_leave(const wire::Leave& leave);
  void suspect(const Error& error);
  void send_failure(const Error& error, bool suspected);
  [[nodiscard]] bool all_left() const;
  [[nodiscard]] bool idle() const;

  JobContext& context_;
  const std::string name_;
  const uid_t uid_;
  const JobSettings settings_;
  const std::uint32_t world_;
  const std::string leader_address_;
  State state_ = State::kAttaching;
  std::vector<Worker> workers_;  // by local rank
  std::unique_ptr<Leader> leader_;
  Peer leader_peer_;  // empty: this node leads
  std::uint64_t incarnation_ = 0;
  std::vector<link::LinkSpec> link_specs_;
  std::optional<Error> refusal_;  // why this node cannot take part
  std::vector<wire::NodeInfo> nodes_;
  std::vector<std::uint32_t> node_of_rank_;
  std::uint32_t node_ = 0;
  std::shared_ptr<StoreClient> store_;
  std::vector<LinkQueue> links_;
  std::map<std::uint32_t, Group> groups_;
  std::map<std::string, Operation> operations_;
  std::uint64_t next_number_ = 0;
  std::set<std::uint32_t> left_;  // ranks of the whole job that ended cleanly
  TimeUs leader_seen_us_ = 0;
  TimeUs attached_us_ = 0;  // the first worker came
  TimeUs all_left_us_ = 0;
  std::optional<Suspicion> suspicion_;
  std::map<std::string, TimeUs> reported_;        // stalls, by text, and when they were last told
  std::map<std::string, nlohmann::json> stalls_;  // for the status
  Reactor::TimerId join_timer_ = 0, tick_timer_ = 0, deadline_timer_ = 0;
};

// What a worker asked for, as its node tells the leader: what a collective does not use is left out.
wire::CollectiveSpec collective_spec(const ipc::Operation& call, std::uint32_t rank);

}  // namespace deft::daemon
