#include "tools/verify.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/replay/quantiles.h"
#include "tools/flag_file.h"
#include "tools/traced_runs.h"

namespace deft::tools {
namespace {

Verified verdict(double before_us, double before_again_us, double after_us, double after_again_us) {
  return {(before_us + before_again_us) / 2, (after_us + after_again_us) / 2,
          std::max(std::abs(before_us - before_again_us), std::abs(after_us - after_again_us)) / 2};
}

}  // namespace

Result<Verified> run_both(const std::vector<std::string>& command, const std::map<std::string, std::string>& options) {
  auto runs = TracedRuns::begin("deft optimize --verify");
  if (!runs) return tl::unexpected(runs.error());
  std::map<std::string, std::string> variables;
  for (const auto& [option, value] : options) variables[as_variable(option)] = value;
  constexpr std::array kIsChanged = {false, true, true, false};
  std::array<double, kIsChanged.size()> steps_us{};
  for (std::size_t run = 0; run < kIsChanged.size(); ++run) {
    const auto job = runs->run(command, kIsChanged[run] ? variables : std::map<std::string, std::string>());
    if (!job) return tl::unexpected(job.error());
    steps_us[run] = replay::median(job->measured.steps_us);
  }
  return verdict(steps_us[0], steps_us[3], steps_us[1], steps_us[2]);
}

}  // namespace deft::tools
