#include "daemon/node/stall_watchdog.h"

#include <glog/logging.h>

#include <algorithm>

#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kLongestGraceUs = 1'000'000;
constexpr const char* kSameSteps = "all ranks must run the same number of steps";
constexpr const char* kSameCollectives = "all ranks must run the same collectives";
constexpr const char* kSameModel = "all ranks must train the same model";
constexpr const char* kRaiseTimeout = "raise DEFT_STALL_TIMEOUT if this is expected";

std::pair<std::uint32_t, std::string> key_of(const wire::Stalled& stalled) { return {stalled.rank, stalled.tensor}; }

std::string gradients_of(std::uint32_t group) { return "the gradients of group " + std::to_string(group); }

std::string in_words(const wire::Stalled& stalled) {
  switch (stalled.duty) {
    case wire::Duty::kDeclaration: return "declared " + stalled.tensor;
    case wire::Duty::kCollective: return "asked for '" + stalled.tensor + "'";
    case wire::Duty::kGradients: break;
  }
  return "handed in '" + stalled.tensor + "' of step " + std::to_string(stalled.step);
}

// This rank will not come to `what` any more.
Result<void> has_ended(std::uint32_t rank, const std::string& what, const char* fix) {
  return fail(ErrorKind::kLost, "rank " + std::to_string(rank) + " has ended, and " + what + " needs it", fix);
}

// Whether somebody waits for what others owe. If all stopped within one backward, nobody does.
bool is_awaited(const GradientGroups::GroupState& group, const Owed& owed) {
  for (std::size_t worker = 0; worker < group.declared.size(); ++worker)
    if (!group.released_by(worker) && std::ranges::find(owed.workers, worker) == owed.workers.end()) return true;
  return owed.ordered;
}

std::string seconds(TimeUs us) { return std::to_string(us / 1'000'000) + " s"; }

}  // namespace

TimeUs StallWatchdog::grace_us() const { return std::min(members_.settings().timeout_us / 4, kLongestGraceUs); }

Result<void> StallWatchdog::check(TimeUs now_us) {
  std::erase_if(stalls_, [&](const auto& entry) {
    return now_us - entry.second.reported_us > 2 * members_.settings().stall_warning_us();
  });
  if (auto ok = check_declarations(now_us); !ok) return ok;
  if (auto ok = check_gradients(now_us); !ok) return ok;
  return check_collectives(now_us);
}

Result<void> StallWatchdog::check_left(TimeUs now_us) {
  for (const auto& [id, group] : groups_.groups()) {
    if (!group.agreed) continue;
    for (const Owed& owed : group.gradients->owed(now_us - grace_us()))
      if (owed.ordered)
        if (auto ok = judge(group, owed, now_us); !ok) return ok;
  }
  return {};
}

Result<void> StallWatchdog::check_declarations(TimeUs now_us) {
  for (const auto& [id, group] : groups_.groups()) {
    if (group.agreed) {
      undeclared_since_.erase(id);
      continue;
    }
    if (auto ok = check_local_declarations(id, group, now_us); !ok) return ok;
    for (const auto rank : members_.left())
      if (!view_->is_local(rank)) return has_ended(rank, "group " + std::to_string(id), kSameModel);
  }
  return {};
}

// The leader watches the nodes whose workers have all declared the group, and those of which none has.
Result<void> StallWatchdog::check_local_declarations(std::uint32_t id, const GradientGroups::GroupState& group,
                                                     TimeUs now_us) {
  const TimeUs age_us = now_us - undeclared_since_.try_emplace(id, now_us).first->second;
  for (std::size_t i = 0; i < group.declared.size(); ++i) {
    if (group.declared[i]) continue;
    const Membership::Worker& worker = members_.workers()[i];
    if (worker.left)
      return fail(ErrorKind::kLost,
                  "rank " + std::to_string(worker.rank) + " has ended without declaring group " + std::to_string(id) +
                      ", which others did",
                  kSameModel);
    if (age_us > members_.settings().stall_timeout_us)
      return fail(ErrorKind::kTimeout,
                  worker.describe() + " has not declared group " + std::to_string(id) + " for " + seconds(age_us) +
                      ", which others did",
                  kRaiseTimeout);
    if (age_us >= members_.settings().stall_warning_us())
      report({worker.rank, gradients_of(id), 0, static_cast<std::uint64_t>(age_us / 1000), wire::Duty::kDeclaration},
             now_us);
  }
  return {};
}

Result<void> StallWatchdog::check_gradients(TimeUs now_us) {
  for (const auto& [id, group] : groups_.groups()) {
    if (!group.agreed) continue;
    const bool in_use = !group.released_by_all();  // else somebody waits only for what was ordered
    for (const Owed& owed : group.gradients->owed(now_us - grace_us()))
      if (in_use || owed.ordered)
        if (auto ok = judge(group, owed, now_us); !ok) return ok;
    if (!in_use) continue;
    if (auto ok = check_order(id, *group.gradients, now_us); !ok) return ok;
  }
  return {};
}

// A bucket is ready here, and the leader has not ordered it: rank 0's node owes it.
Result<void> StallWatchdog::check_order(std::uint32_t id, const Gradients& gradients, TimeUs now_us) {
  const auto unordered = gradients.unordered(now_us - grace_us());
  if (!unordered) return {};
  for (const auto rank : view_->nodes()[0].ranks)
    if (members_.has_left(rank))
      return fail(ErrorKind::kLost,
                  "rank " + std::to_string(rank) + " has ended without handing in '" +
                      gradients.specs()[unordered->tensor].name + "' of step " + std::to_string(unordered->generation) +
                      ", for which others wait",
                  kSameSteps);
  if (now_us - unordered->since_us >= members_.settings().stall_warning_us())
    leader_.send(wire::Waiting{id, unordered->bucket, unordered->generation});
  return {};
}

Result<void> StallWatchdog::judge(const GradientGroups::GroupState& group, const Owed& owed, TimeUs now_us) {
  const Gradients& gradients = *group.gradients;
  const std::string& tensor = gradients.specs()[owed.tensor].name;
  const TimeUs age_us = now_us - owed.since_us;
  for (const std::size_t index : owed.workers) {
    const Membership::Worker& worker = members_.workers()[index];
    const std::string what = "'" + tensor + "' of step " + std::to_string(owed.generation);
    if (worker.left)
      return fail(ErrorKind::kLost,
                  worker.describe() + " has ended without handing in " + what + ", for which others wait", kSameSteps);
    if (group.released_by(index) && is_awaited(group, owed))
      return fail(ErrorKind::kMismatch,
                  worker.describe() + " has released '" + group.declared[index]->name + "' without handing in " + what +
                      ", for which others wait",
                  kSameSteps);
    if (age_us > members_.settings().stall_timeout_us)
      return fail(ErrorKind::kTimeout, worker.describe() + " has not handed in " + what + " for " + seconds(age_us),
                  kRaiseTimeout);
    if (age_us >= members_.settings().stall_warning_us())
      report({worker.rank, tensor, owed.generation, static_cast<std::uint64_t>(age_us / 1000)}, now_us);
  }
  return {};
}

Result<void> StallWatchdog::check_collectives(TimeUs now_us) {
  // If all workers of the leader's node have ended, nobody there asks for it any more, and it never starts.
  const auto& leaders = view_->nodes()[0].ranks;
  const auto unstarted = collectives_.unstarted(now_us - grace_us());
  if (unstarted && std::ranges::all_of(leaders, [&](auto rank) { return members_.has_left(rank); }))
    return has_ended(leaders.front(), "'" + *unstarted + "'", kSameCollectives);
  for (const auto& owed : collectives_.owed(now_us - grace_us())) {
    const TimeUs age_us = now_us - owed.since_us;
    for (const std::size_t index : owed.workers) {
      const Membership::Worker& worker = members_.workers()[index];
      const std::string who = "rank " + std::to_string(worker.rank);
      if (worker.left) return has_ended(worker.rank, "'" + owed.name + "'", kSameCollectives);
      if (age_us > members_.settings().stall_timeout_us)
        return fail(ErrorKind::kTimeout, who + " has not asked for '" + owed.name + "' for " + seconds(age_us),
                    kRaiseTimeout);
      if (age_us >= members_.settings().stall_warning_us())
        report({worker.rank, owed.name, 0, static_cast<std::uint64_t>(age_us / 1000), wire::Duty::kCollective}, now_us);
    }
  }
  return {};
}

Result<void> StallWatchdog::answer(const wire::Waiting& waiting, TimeUs now_us) {
  const auto it = groups_.groups().find(waiting.group);
  if (it == groups_.groups().end() || !it->second.agreed || it->second.ended) return {};
  const Gradients& gradients = *it->second.gradients;
  if (waiting.bucket >= gradients.buckets().size()) return {};
  Owed owed = gradients.missing(waiting.bucket, waiting.generation);
  // A bucket that is ready here and not ordered may wait to be merged with a bucket behind it.
  for (model::BucketIndex next = waiting.bucket + 1; owed.workers.empty() && next < gradients.buckets().size(); ++next)
    owed = gradients.missing(next, waiting.generation);
  if (owed.workers.empty()) return {};
  // Its gradients need not have begun here, so this node knows only when it was first asked. The sender had waited before.
  Asked& asked = asked_[{waiting.group, waiting.bucket}];
  if (asked.since_us == 0 || asked.generation != waiting.generation)
    asked = {waiting.generation, now_us - members_.settings().stall_warning_us()};
  owed.since_us = asked.since_us;
  owed.ordered = true;  // as good as: that node waits
  return judge(it->second, owed, now_us);
}

Result<void> StallWatchdog::answer(const wire::Late& late) {
  const bool declares = late.collective.empty();
  const auto& workers = members_.workers();
  const auto group = groups_.groups().find(late.group);
  const auto has_declared = [&](std::size_t worker) {
    return group != groups_.groups().end() && group->second.declared[worker].has_value();
  };
  for (std::size_t i = 0; i < workers.size(); ++i)  // if one worker has come, check() finds those that have not
    if (declares ? has_declared(i) : collectives_.has_asked(i, late.collective)) return {};
  const std::string what = declares ? gradients_of(late.group) : late.collective;
  for (const Membership::Worker& worker : workers) {
    if (worker.left) return has_ended(worker.rank, "'" + what + "'", declares ? kSameModel : kSameCollectives);
    leader_.send(wire::Stalled{worker.rank, what, 0, late.age_ms,
                               declares ? wire::Duty::kDeclaration : wire::Duty::kCollective});
  }
  return {};
}

void StallWatchdog::forget(std::uint32_t group) {
  std::erase_if(asked_, [&](const auto& entry) { return entry.first.first == group; });
}

void StallWatchdog::report(wire::Stalled stalled, TimeUs now_us) {
  const auto [it, added] = stalls_.try_emplace(key_of(stalled));
  if (!added && now_us - it->second.reported_us < members_.settings().stall_warning_us()) return;
  it->second.reported_us = now_us;
  leader_.send(std::move(stalled));
}

void StallWatchdog::note(const wire::Stalled& stalled, TimeUs now_us) {
  LOG(WARNING) << about(members_.identity().name).rank(stalled.rank) << "stalled: rank " << stalled.rank << " has not "
               << in_words(stalled) << "; others have waited " << stalled.age_ms << " ms";
  stalls_[key_of(stalled)] = {stalled, true, now_us};
}

nlohmann::json StallWatchdog::status() const {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [key, stall] : stalls_)
    if (stall.told)
      json.push_back({{"rank", stall.stalled.rank},
                      {"owes", stall.stalled.tensor},
                      {"step", stall.stalled.step},
                      {"age_ms", stall.stalled.age_ms}});
  return json;
}

}  // namespace deft::daemon
