// Who is late, who is lost: a node's watch over its workers and its leader.
//
// A worker that lives but owes something is reported after settings.stall_warning_us() and again at that interval, and
// ends the job only after stall_timeout. What can never come (its rank has ended) ends the job after a short grace.
#include <glog/logging.h>

#include <algorithm>

#include "daemon/node/job.h"

namespace deft::daemon {
namespace {

TimeUs grace_us(const JobSettings& settings) { return std::min<TimeUs>(settings.timeout_us / 4, 1'000'000); }

}  // namespace

void Job::tick() {
  tick_timer_ = context_.reactor.after(settings_.heartbeat_us(), [this] { tick(); });
  const TimeUs now = MonotonicClock::now();
  if (all_left()) {
    if (idle() || now - all_left_us_ > settings_.silence_us()) end({}, true);
    return;
  }
  watch_leader(now);
  if (state_ != State::kRunning) return;
  tell_progress();
  std::erase_if(reported_, [&](const auto& entry) { return now - entry.second > 2 * settings_.stall_warning_us(); });
  std::erase_if(stalls_, [&](const auto& entry) { return reported_.count(entry.first) == 0; });
  watch_declarations();
  if (state_ == State::kRunning) watch_gradients(now);
  if (state_ == State::kRunning) watch_operations(now);
}

bool Job::all_left() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.left; });
}

bool Job::idle() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const LinkQueue& l) { return l.waiting.empty() && l.running.empty(); });
}

void Job::watch_leader(TimeUs now_us) {
  if (leader_peer_.empty()) return;
  to_leader(wire::Heartbeat{});
  const auto lost = [&](const std::string& how) {
    end({ErrorKind::kLost,
         "node 0: " + (nodes_.empty() ? leader_address_ : nodes_[0].host) + ", the leader, was lost: " + how,
         "look at that node and its daemon's log",
         {}},
        false);
  };
  if (suspicion_) {
    const TimeUs age = now_us - suspicion_->since_us;
    if (age > settings_.timeout_us / 3 && leader_seen_us_ < suspicion_->since_us && left_.count(0) == 0)
      return lost(suspicion_->error.message());
    if (left_.count(0) != 0)
      return end({ErrorKind::kLost, "rank 0 has ended, while others still need it",
                  "all ranks must run the same number of steps", suspicion_->error.what},
                 false);
    if (age > settings_.timeout_us * 2 / 3) return end(suspicion_->error, false);
  }
  const bool leader_left = left_.count(0) != 0;
  if (!leader_left && now_us - leader_seen_us_ > settings_.silence_us())
    lost("no sign of life for " + std::to_string((now_us - leader_seen_us_) / 1000) + " ms");
}

void Job::suspect(const Error& error) {
  if (suspicion_ || state_ == State::kEnded) return;
  LOG(WARNING) << "[" << name_ << "] " << error.message() << "; finding out who is lost";
  suspicion_ = {error, MonotonicClock::now()};
  send_failure(error.in("on " + context_.host), true);
}

void Job::send_failure(const Error& error, bool suspected) { to_leader(wire::Failure{error, suspected}); }

void Job::fail_job(const Error& error) {
  if (state_ == State::kEnded) return;
  if (leader_) return send_failure(error, false);  // comes back to this node too
  if (!leader_peer_.empty()) send_failure(error, false);
  end(error, false);
}

void Job::on_failure(const wire::Failure& failure) { end(failure.error, false); }

void Job::on_leave(const wire::Leave& leave) { left_.insert(leave.ranks.begin(), leave.ranks.end()); }

void Job::report_stall(std::uint32_t rank, const std::string& what, std::uint64_t step, TimeUs age_us) {
  const TimeUs now = MonotonicClock::now();
  const auto [it, added] = reported_.try_emplace(std::to_string(rank) + what, 0);
  if (!added && now - it->second < settings_.stall_warning_us()) return;
  it->second = now;
  to_leader(wire::Stalled{rank, what, step, static_cast<std::uint64_t>(age_us / 1000)});
}

void Job::on_stalled(const wire::Stalled& stalled) {
  LOG(WARNING) << "[" << name_ << "] stalled: rank " << stalled.rank << " has not handed in '" << stalled.tensor
               << "' of step " << stalled.step << "; others have waited " << stalled.age_ms << " ms";
  const std::string key = std::to_string(stalled.rank) + stalled.tensor;
  reported_[key] = MonotonicClock::now();
  stalls_[key] = {{"rank", stalled.rank}, {"owes", stalled.tensor}, {"step", stalled.step}, {"age_ms", stalled.age_ms}};
}

void Job::report_owed(const Gradients& gradients, const Owed& owed, TimeUs now_us) {
  const std::string& tensor = gradients.specs()[owed.tensor].name;
  const TimeUs age = now_us - owed.since_us;
  for (const std::size_t worker : owed.workers) {
    const std::uint32_t rank = workers_[worker].rank;
    const std::string who = "rank " + std::to_string(rank) + " (pid " + std::to_string(workers_[worker].pid) + ")";
    const std::string what = "'" + tensor + "' of step " + std::to_string(owed.generation);
    if (workers_[worker].left)
      return fail_job({ErrorKind::kLost,
                       who + " has ended without handing in " + what + ", for which others wait",
                       "all ranks must run the same number of steps",
                       {}});
    if (age > settings_.stall_timeout_us)
      return fail_job({ErrorKind::kTimeout,
                       who + " has not handed in " + what + " for " + std::to_string(age / 1'000'000) + " s",
                       "raise DEFT_STALL_TIMEOUT if this is expected",
                       {}});
    if (age >= settings_.stall_warning_us()) report_stall(rank, tensor, owed.generation, age);
  }
}

void Job::watch_gradients(TimeUs now_us) {
  for (const auto& [id, group] : groups_) {
    if (!group.agreed) continue;
    const Gradients& gradients = *group.gradients;
    for (const Owed& owed : gradients.owed(now_us - grace_us(settings_))) {
      report_owed(gradients, owed, now_us);
      if (state_ != State::kRunning) return;
    }
    const auto unordered = gradients.unordered(now_us - grace_us(settings_));
    if (!unordered) continue;
    const TimeUs age = now_us - unordered->since_us;
    for (const auto rank : nodes_[0].ranks) {
      if (left_.count(rank) == 0) continue;
      return fail_job({ErrorKind::kLost,
                       "rank " + std::to_string(rank) + " has ended without handing in '" +
                           gradients.specs()[unordered->tensor].name + "' of step " +
                           std::to_string(unordered->generation) + ", for which others wait",
                       "all ranks must run the same number of steps",
                       {}});
    }
    if (age < settings_.stall_warning_us()) continue;
    to_leader(wire::Waiting{id, unordered->bucket, unordered->generation});
  }
}

// Another node waits for a launch: on the leader's node, say which of its workers owes the gradients.
void Job::on_waiting(const wire::Waiting& waiting) {
  const auto it = groups_.find(waiting.group);
  if (state_ != State::kRunning || it == groups_.end() || !it->second.agreed) return;
  const Gradients& gradients = *it->second.gradients;
  if (waiting.bucket >= gradients.buckets().size()) return;
  Owed owed = gradients.missing(waiting.bucket, waiting.generation);
  // What is ready here and not ordered may be waiting to be merged with one behind it.
  for (model::BucketIndex next = waiting.bucket + 1; owed.workers.empty() && next < gradients.buckets().size(); ++next)
    owed = gradients.missing(next, waiting.generation);
  owed.since_us = MonotonicClock::now() - settings_.stall_warning_us();
  report_owed(gradients, owed, MonotonicClock::now());
}

void Job::watch_declarations() {
  for (const auto& [id, group] : groups_) {
    if (group.agreed) continue;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (group.declared[i]) continue;
      if (workers_[i].left)
        return fail_job({ErrorKind::kLost,
                         "rank " + std::to_string(workers_[i].rank) + " has ended without declaring group " +
                             std::to_string(id) + ", which others did",
                         "all ranks must train the same model",
                         {}});
    }
    for (const auto rank : left_) {
      if (node_of_rank_[rank] == node_) continue;
      return fail_job({ErrorKind::kLost,
                       "rank " + std::to_string(rank) + " has ended, and group " + std::to_string(id) + " needs it",
                       "all ranks must train the same model",
                       {}});
    }
  }
}

void Job::watch_operations(TimeUs now_us) {
  for (const auto& [name, operation] : operations_) {
    const TimeUs age = now_us - operation.since_us;
    if (operation.started || age < grace_us(settings_)) continue;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      if (operation.requests[i]) continue;
      const std::uint32_t rank = workers_[i].rank;
      if (workers_[i].left)
        return fail_job({ErrorKind::kLost,
                         "rank " + std::to_string(rank) + " has ended, and '" + name + "' needs it",
                         "all ranks must run the same collectives",
                         {}});
      if (age > settings_.stall_timeout_us)
        return fail_job({ErrorKind::kTimeout,
                         "rank " + std::to_string(rank) + " has not asked for '" + name + "' for " +
                             std::to_string(age / 1'000'000) + " s",
                         "raise DEFT_STALL_TIMEOUT if this is expected",
                         {}});
      if (age >= settings_.stall_warning_us()) report_stall(rank, name, 0, age);
    }
  }
}

}  // namespace deft::daemon
