// Decides when a policy that works by a profile decides anew. All such policies share it.
//
//   ProfileWatch watch(links);
//   bool wants_profile(step) { return watch.is_due(step); }
//   void profile_measured(profile, step, now_us) {
//     const auto reason = watch.look(profile, step);
//     if (!reason) return;                    // the decision in force is still right
//     ...                                     // decide, for watch.remaining(profile)
//     watch.decided(profile);
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/model/profile.h"
#include "core/plan/convergence_guard.h"

namespace deft::sched {

// Says in which steps a policy checks whether it would decide otherwise now, and whether one check is enough (hysteresis).
//
//   if (trigger.due(step)) {
//     trigger.looked(step, decided_before);
//     if (trigger.confirm(reason)) ...         // decide anew, and call decided()
//   }
//
// Measurements vary, and another decision has a cost. So several checks in a row must find a reason, unless the reason is
// certain, as the loss of a link is.
class ReplanTrigger {
 public:
  static constexpr std::uint64_t kEvery = 8;  // steps from one check to the next
  static constexpr unsigned kConfirmed = 3;   // checks in a row

  [[nodiscard]] bool due(std::uint64_t step) const { return step >= at_; }

  // Before the first decision every step is checked.
  void looked(std::uint64_t step, bool decided_before) { at_ = step + (decided_before ? kEvery : 1); }

  // True if the policy should act on `found`, the result of this check.
  bool confirm(const plan::ReplanReason& found) {
    seen_ = found.reason.empty() ? 0 : seen_ + 1;
    return seen_ > 0 && (found.immediate || seen_ >= kConfirmed);
  }
  void decided() { seen_ = 0; }
  // The decision holds from `step` on, so measurements from before that step say nothing about it.
  void resume_after(std::uint64_t step) { at_ = step + kEvery; }
  void hurry() { at_ = 0; }  // the next step is checked

 private:
  std::uint64_t at_ = 0;
  unsigned seen_ = 0;
};

// Tells when the decision in force is no longer right: see above. Among the times of a profile are those of codecs. A codec's time counts
// only if it decides how fast a link is.
class ProfileWatch {
 public:
  // If `latencies` is true, a change of a link's latency is a reason, too.
  explicit ProfileWatch(std::size_t links, bool latencies = false)
      : latencies_(latencies), lost_(links), lost_then_(links) {}

  [[nodiscard]] bool is_due(std::uint64_t step) const { return trigger_.due(step); }
  [[nodiscard]] bool has_decided() const { return decided_for_.has_value(); }

  // The reason to decide anew before `step`; nothing: the decision in force stays. `own` gives the policy's own reason.
  std::optional<plan::ReplanReason> look(const model::Profile& profile, std::uint64_t step,
                                         const std::function<plan::ReplanReason()>& own = {});
  // Call this after deciding for `profile`.
  void decided(const model::Profile& profile);
  // The decision holds from `step` on.
  void resume_after(std::uint64_t step) { trigger_.resume_after(step); }
  void link_lost(std::size_t link);
  // The next profile counts as the first.
  void forget() {
    decided_for_.reset();
    trigger_.hurry();
  }

  // The profile without the links that are lost.
  [[nodiscard]] model::Profile remaining(const model::Profile& profile) const;

 private:
  [[nodiscard]] plan::ReplanReason reason(const model::Profile& profile,
                                          const std::function<plan::ReplanReason()>& own) const;

  bool latencies_;
  std::vector<bool> lost_, lost_then_;  // [link]: now, and at the last decision
  std::optional<model::Profile> decided_for_;
  ReplanTrigger trigger_;
};

}  // namespace deft::sched
