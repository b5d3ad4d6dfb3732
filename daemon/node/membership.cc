#include "daemon/node/membership.h"

#include <algorithm>

namespace deft::daemon {
namespace {

bool is_allowed(JobState from, JobState to) {
  switch (to) {
    case JobState::kAttaching: return false;
    case JobState::kJoining: return from == JobState::kAttaching;
    case JobState::kConnecting: return from == JobState::kJoining;
    case JobState::kRunning: return from == JobState::kConnecting;
    case JobState::kEnded: return from != JobState::kEnded;
  }
  return false;
}

}  // namespace

std::string_view to_string(JobState state) {
  switch (state) {
    case JobState::kAttaching: return "attaching";
    case JobState::kJoining: return "joining";
    case JobState::kConnecting: return "connecting";
    case JobState::kRunning: return "running";
    case JobState::kEnded: return "ended";
  }
  return "?";
}

std::string Membership::Worker::describe() const {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + ")";
}

Membership::Membership(JobIdentity identity, JobSettings settings)
    : identity_(std::move(identity)), settings_(std::move(settings)), workers_(identity_.local_size) {}

Result<void> Membership::admit(const WorkerPort& worker, const JobSettings& wishes) const {
  if (worker.peer().uid != identity_.uid)
    return fail(ErrorKind::kInvalid, "the job '" + identity_.name + "' belongs to another user",
                "set DEFT_JOB to a name of your own");
  if (state_ != JobState::kAttaching)
    return fail(ErrorKind::kInvalid,
                "a job named '" + identity_.name + "' is running on this daemon with " + workers_[0].describe(),
                "wait for it to end, or set DEFT_JOB to another name");
  if (wishes.options.text("job_token") != identity_.token)
    return fail(ErrorKind::kInvalid, "the job '" + identity_.name + "' has another token than this worker",
                "give all workers the same DEFT_JOB_TOKEN, or set DEFT_JOB to another name");
  const auto ours = settings_.agreed(), theirs = wishes.agreed();
  for (const auto& [name, value] : ours)
    if (theirs.at(name) != value)
      return fail(ErrorKind::kMismatch,
                  "rank " + std::to_string(worker.hello().rank) + " sets '" + name + "' to '" + theirs.at(name) +
                      "', the others on this node to '" + value + "'",
                  "give all workers the same settings");
  return {};
}

Result<void> Membership::attach(WorkerPort& worker) {
  const WorkerHello& a = worker.hello();
  const std::string who = "rank " + std::to_string(a.rank);
  if (a.world != identity_.world)
    return fail(ErrorKind::kMismatch,
                who + " has a world size of " + std::to_string(a.world) + ", the others on this node have " +
                    std::to_string(identity_.world),
                "give all workers the same WORLD_SIZE");
  if (a.local_size != workers_.size() || a.local_rank >= workers_.size())
    return fail(ErrorKind::kMismatch,
                who + " expects " + std::to_string(a.local_size) + " workers on this node, the others expect " +
                    std::to_string(workers_.size()),
                "give all the same LOCAL_WORLD_SIZE");
  if (a.leader != identity_.leader)
    return fail(ErrorKind::kMismatch,
                who + " has the leader '" + a.leader + "', the others on this node have '" + identity_.leader + "'",
                "give all workers the same DEFT_LEADER");
  for (const auto& other : workers_)
    if (other.port != nullptr && other.rank == a.rank)
      return fail(ErrorKind::kMismatch,
                  "two workers have rank " + std::to_string(a.rank) + " on this node: pid " +
                      std::to_string(other.pid) + " and another",
                  "give each worker its own RANK");
  Worker& place = workers_[a.local_rank];
  if (place.port != nullptr)
    return fail(ErrorKind::kMismatch,
                "ranks " + std::to_string(place.rank) + " and " + std::to_string(a.rank) +
                    " both have the local rank " + std::to_string(a.local_rank),
                "give each worker on a node its own LOCAL_RANK");
  place = {&worker, a.rank, worker.peer().pid, false};
  return {};
}

std::optional<std::size_t> Membership::detach(const WorkerPort& worker) {
  const auto index = index_of(worker);
  if (index) workers_[*index].port = nullptr;
  return index;
}

bool Membership::advance(JobState to) {
  if (!is_allowed(state_, to)) return false;
  state_ = to;
  return true;
}

void Membership::mark_left(std::span<const std::uint32_t> ranks) {
  left_.insert(ranks.begin(), ranks.end());
  for (Worker& worker : workers_)
    if (worker.port == nullptr && std::ranges::count(ranks, worker.rank) != 0) worker.left = true;
}

bool Membership::all_left() const { return std::ranges::all_of(workers_, &Worker::left); }

std::optional<std::size_t> Membership::index_of(const WorkerPort& worker) const {
  const std::size_t index = worker.hello().local_rank;
  if (index >= workers_.size() || workers_[index].port != &worker) return std::nullopt;
  return index;
}

bool Membership::complete() const {
  return std::ranges::none_of(workers_, [](const Worker& worker) { return worker.port == nullptr; });
}

std::vector<std::uint32_t> Membership::ranks() const {
  std::vector<std::uint32_t> ranks;
  ranks.reserve(workers_.size());
  for (const Worker& worker : workers_) ranks.push_back(worker.rank);
  return ranks;
}

bool Membership::has_rank(std::uint32_t rank) const { return std::ranges::count(workers_, rank, &Worker::rank) != 0; }

std::string Membership::missing() const {
  std::string text;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].port == nullptr) text += (text.empty() ? "" : ", ") + std::to_string(i);
  return text;
}

void Membership::complete_all(const shm::Record& record) const {
  for (const Worker& worker : workers_)
    if (worker.port != nullptr) worker.port->complete(record);
}

}  // namespace deft::daemon
