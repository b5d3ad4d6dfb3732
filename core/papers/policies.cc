#include "core/papers/policies.h"

#include "core/base/policy_traits.h"

namespace deft::papers {

Result<std::unique_ptr<sched::Scheduler>> make_scheduler(const sched::Setup& setup) {
  const PolicyTraits* const traits = find_policy(setup.policy);
  if (traits == nullptr || traits->id != PolicyId::kKnapsackPaper) return sched::make_scheduler(setup);
  if (auto ok = sched::check_setup(setup); !ok) return tl::unexpected(ok.error());
  return make_knapsack_paper(setup);
}

}  // namespace deft::papers
