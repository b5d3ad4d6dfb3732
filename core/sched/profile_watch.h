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
#include "core/sched/replan_trigger.h"

namespace deft::sched {

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
