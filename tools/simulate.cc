#include "tools/simulate.h"

#include <algorithm>
#include <chrono>
#include <iostream>

#include "core/base/policy_traits.h"
#include "core/model/link_costs.h"
#include "core/papers/policies.h"
#include "core/partition/rebucket.h"
#include "core/select/simulating_selector.h"
#include "tools/simulate_options.h"
#include "tools/simulate_output.h"
#include "tools/simulate_svg.h"

namespace deft::tools {
namespace {

std::vector<sim::NodeSpeed> make_nodes(const SimulateOptions& options) {
  std::vector<sim::NodeSpeed> nodes(options.nodes, sim::NodeSpeed{1, options.jitter});
  nodes.back().slowdown = options.straggler;
  return nodes;
}

Result<model::Profile> with_costs(model::Profile profile, const std::string& path) {
  const auto costs = model::read_link_costs(path);
  if (!costs) return tl::unexpected(costs.error());
  profile.links.clear();
  for (const auto& link : *costs)
    profile.links.push_back({link.name, link.latency_us, std::nullopt, link.bytes_per_us});
  if (auto ok = model::check_profile(profile); !ok) return tl::unexpected(ok.error().in(path));
  return profile;
}

Result<model::Profile> load_profile(const SimulateOptions& options) {
  auto profile = model::read_profile(options.profile_path);
  if (profile && !options.link_costs.empty()) profile = with_costs(*std::move(profile), options.link_costs);
  if (profile && !options.links.empty()) profile = model::with_links(*profile, options.links);
  return profile;
}

Result<std::vector<model::LinkIndex>> priority_links(const SimulateOptions& options, const model::Profile& profile) {
  std::vector<model::LinkIndex> found;
  for (const std::string& name : options.priority_channel) {
    const auto link = std::ranges::find(profile.links, name, &model::ProfileLink::name);
    if (link == profile.links.end())
      return fail(ErrorKind::kInvalid, "--priority-channel: no link '" + name + "' is simulated",
                  "name links of the profile that --links leaves");
    found.push_back(static_cast<model::LinkIndex>(link - profile.links.begin()));
  }
  return found;
}

Result<PolicyRun> run_policy(const SimulateOptions& options, const model::Profile& given, std::string_view policy) {
  auto profile = partition::rebucket(given, options.bucketing);
  if (!profile) return tl::unexpected(profile.error());
  auto priority = priority_links(options, *profile);
  if (!priority) return tl::unexpected(priority.error());
  auto setup = sim::setup_for(*profile, policy);
  setup.partition_bytes = options.partition_bytes;
  setup.credit_bytes = options.credit_bytes;
  setup.merge_groups = options.merge_groups;
  setup.limits = options.limits;
  setup.limits.set_slots(options.slots);
  setup.small_overtake = priority->size() == profile->links.size();
  setup.selector = select::make_selector(select::When::kAtOnce, !options.priority_channel.empty());
  const auto begin = std::chrono::steady_clock::now();
  const auto scheduler = papers::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error().in(policy));
  if ((*scheduler)->wants_profile(0))
    (*scheduler)->profile_measured(*profile, 0, 0);  // solves: the simulator would ask later
  const std::chrono::duration<double, std::micro> solve = std::chrono::steady_clock::now() - begin;
  const sim::Options run{.steps = options.steps,
                         .warmup_steps = warmup_steps(options),
                         .contention = options.contention,
                         .nodes = make_nodes(options),
                         .seed = options.seed,
                         .record = !options.events_path.empty() || !options.svg_path.empty(),
                         .priority_links = *std::move(priority)};
  auto outcome = sim::simulate(**scheduler, *profile, run);
  if (!outcome) return tl::unexpected(outcome.error().in(policy));
  return PolicyRun{std::string(policy), solve.count(), std::move(*profile), std::move(*outcome)};
}

Result<std::vector<PolicyRun>> run_all(const SimulateOptions& options, const model::Profile& profile) {
  std::vector<std::string> policies;
  if (options.policy == "all") {
    for (const auto& traits : kPolicyTraits) policies.emplace_back(traits.name);
  } else {
    policies.push_back(options.policy);
  }
  std::vector<PolicyRun> runs;
  for (const auto& policy : policies) {
    auto run = run_policy(options, profile, policy);
    if (!run) return tl::unexpected(run.error());
    runs.push_back(std::move(*run));
  }
  return runs;
}

Result<void> simulate(const SimulateOptions& options) {
  const auto profile = load_profile(options);
  if (!profile) return tl::unexpected(profile.error());
  const auto runs = run_all(options, *profile);
  if (!runs) return tl::unexpected(runs.error());
  const auto write_runs = [&](std::ostream& out) {
    for (const auto& run : *runs) write_events(out, run);
  };
  const auto draw = [&](std::ostream& out) { draw_timelines(out, *profile, *runs); };
  if (!options.events_path.empty())
    if (auto ok = write_file(options.events_path, write_runs); !ok) return ok;
  if (!options.svg_path.empty())
    if (auto ok = write_file(options.svg_path, draw); !ok) return ok;
  options.json ? print_json(*runs) : print_table(std::cout, *profile, *runs);
  return {};
}

}  // namespace

Result<int> run_simulate(Arguments arguments) {
  const auto options = parse_simulate_options(arguments);
  if (!options) return tl::unexpected(options.error());
  if (options->help) {
    std::cout << simulate_usage();
    return kExitOk;
  }
  if (auto ok = simulate(*options); !ok) return tl::unexpected(ok.error());
  return kExitOk;
}

}  // namespace deft::tools
