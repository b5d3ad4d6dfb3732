#include "daemon/leader/group_coordinator.h"

#include <glog/logging.h>

#include <algorithm>
#include <cmath>

#include "core/base/policy_traits.h"
#include "core/base/text.h"
#include "core/link/backends.h"
#include "core/model/link_names.h"
#include "core/model/tensors.h"
#include "core/partition/bucketing.h"
#include "core/sched/profile_meter.h"
#include "core/select/simulating_selector.h"
#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kShown = 8;  // plans, and changes of the policy

// How many buckets each codec encodes.
nlohmann::json codec_counts(const model::Plan& plan, const std::vector<model::CodecCost>& codecs) {
  nlohmann::json counts = nlohmann::json::object();
  for (const auto codec : plan.codecs) {
    auto& count = counts[codecs.at(codec).name];
    count = count.is_null() ? 1 : count.get<int>() + 1;
  }
  return counts;
}

nlohmann::json summary(std::uint32_t group, std::uint64_t epoch, const sched::PlanSwitch& change,
                       const std::vector<model::CodecCost>& codecs) {
  const model::Plan& plan = change.plan;
  nlohmann::json links = nlohmann::json::array();
  for (const auto& link : change.links) links.push_back({{"bytes_per_us", link.bytes_per_us}});
  return {{"group", group},
          {"epoch", epoch},
          {"from_step", change.step},
          {"period_steps", plan.cycles.period_steps()},
          {"cycle", model::to_text(plan.cycles)},  // as the option plan takes it
          {"updates_per_step", plan.updates_per_step()},
          {"stale_share", plan.stale_share()},
          {"max_staleness_steps", plan.max_staleness()},
          {"max_merged_steps", plan.max_merged()},
          {"step_us", plan.step_us},
          {"compute_us", plan.compute_us},
          {"codecs", codec_counts(plan, codecs)},
          {"codec_error", plan.codec_error},
          {"codec_error_bound", plan.codec_error_bound},
          {"links", links},
          {"reason", change.reason}};
}

// "0-3 4 5-9", of so many buckets.
std::string describe_groups(const std::vector<model::BucketIndex>& starts, std::size_t buckets) {
  constexpr std::size_t kMostShown = 64;
  std::string text;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (i == kMostShown) return text + " ...";
    const std::size_t last = (i + 1 < starts.size() ? starts[i + 1] : buckets) - 1;
    text += (i == 0 ? "" : " ") + std::to_string(starts[i]);
    if (last > starts[i]) text += "-" + std::to_string(last);
  }
  return text;
}

nlohmann::json merging_of(const sched::BucketFusion& fusion, std::uint32_t group, std::size_t buckets) {
  return {{"group", group},
          {"from_step", fusion.step},
          {"buckets", buckets},
          {"transfers", fusion.starts.size()},
          {"groups", describe_groups(fusion.starts, buckets)},
          {"reason", fusion.reason}};
}

// What the nodes declare differently.
std::optional<std::string> difference(const std::vector<std::optional<wire::Declare>>& declared, std::uint32_t group,
                                      const GroupCoordinator::NameOfNode& name_of) {
  const wire::Declare& first = *declared.front();
  for (std::size_t node = 1; node < declared.size(); ++node) {
    const wire::Declare& other = *declared[node];
    if (other.slots != first.slots || other.op != first.op || other.name != first.name)
      return "group " + std::to_string(group) + " is '" + first.name + "' on " + name_of(0) + " and '" + other.name +
             "', with other slots or another reduction, on " + name_of(node);
    auto text = model::first_difference(first.tensors, name_of(0), other.tensors, name_of(node));
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

// A worker's word about `step`: generations beyond the next one of those that the arena holds cannot have begun.
bool is_far_ahead(const model::UpdateSchedule& schedule, std::uint64_t step, std::uint64_t newest) {
  return schedule.of_step(step).generation > newest + 1;
}

bool are_all(std::string_view backend, const LinkFailover& links) {
  bool all = true;
  for (std::uint32_t link = 0; link < links.size(); ++link) all &= model::backend_of(links.cost(link).name) == backend;
  return all;
}

// Simulates policies, for `auto`. Small launches overtake others on gloo's links.
std::shared_ptr<sched::PolicySelector> make_selector(const LinkFailover& links) {
  return select::make_selector(select::When::kInBackground, are_all("gloo", links));
}

// The first link that the workers run, or whose backend cannot do this; empty: there is none.
std::string link_that_cannot(bool link::Backend::*does, const LinkFailover& links) {
  for (std::uint32_t link = 0; link < links.size(); ++link) {
    const std::string& name = links.cost(link).name;
    const link::Backend* const backend = link::find_backend(model::backend_of(name));
    if (backend != nullptr && (!(backend->*does) || backend->runs_in_workers())) return name;
  }
  return "";
}

// Why launches cannot be halves of an all-reduce; empty: they can.
std::string why_no_halves(const JobSettings& settings, const std::vector<model::TensorSpec>& tensors,
                          const LinkFailover& links) {
  if (settings.codecs.size() > 1) return "DEFT_COMPRESSION encodes gradients, which halves cannot do";
  if (std::ranges::any_of(tensors, model::has_own_codec))
    return "tensors have codecs of their own, which halves cannot do";
  const std::string link = link_that_cannot(&link::Backend::composes, links);
  return link.empty() ? "" : "link " + link + " has none";
}

// Tensors with codecs of their own need links that carry all codecs.
Result<void> check_own_codecs(const std::vector<model::TensorSpec>& tensors, const LinkFailover& links) {
  const auto own = std::ranges::find_if(tensors, model::has_own_codec);
  const std::string link = link_that_cannot(&link::Backend::adds_encoded, links);
  if (own == tensors.end() || link.empty()) return {};
  return fail(ErrorKind::kInvalid,
              "link " + link + " cannot carry gradients that are encoded, and tensor '" + own->name +
                  "' has the codec " + own->codec,
              "use gloo, mpi or ps links, or give no tensor a codec");
}

bool is_low_rank(const std::shared_ptr<const compress::Codec>& codec) {
  return codec != nullptr && codec->traits().law == compress::Law::kLowRank;
}

// Nobody knows whether a training bears updates that are late as well.
bool delays_values(const std::shared_ptr<const compress::Codec>& codec) {
  return codec != nullptr && codec->traits().delays_values;
}

// Calls `take` with each codec that a tensor of the bucket has of its own.
template <typename Take>
void for_own_codecs(const std::vector<model::TensorSpec>& tensors, const model::Bucket& bucket, const Take& take) {
  for (std::size_t i = bucket.first_tensor, left = bucket.tensor_count; left > 0; ++i) {
    if (tensors[i].dtype != bucket.dtype) continue;
    --left;
    if (model::has_own_codec(tensors[i])) take(tensors[i].codec);
  }
}

// Policies cut buckets by measured times. The factors of a low-rank codec serve only the rows from which they were made.
void keep_low_rank_uncut(const JobSettings& settings, const std::vector<model::TensorSpec>& tensors,
                         std::vector<model::Bucket>& buckets) {
  const bool is_of_job = is_low_rank(settings.codecs.back());
  for (model::Bucket& bucket : buckets) {
    bucket.uncut = is_of_job && bucket.coded_bytes > 0;
    for_own_codecs(tensors, bucket, [&](const std::string& codec) {
      bucket.uncut |= is_low_rank(gradient_codec(codec).value_or(nullptr));
    });
  }
}

// [bucket]: whether its launches tell how fast a link is. Gradients with codecs of their own, which no plan has chosen, take less of a
// link than others. If nothing else is large, they tell.
std::vector<bool> telling_buckets(const std::vector<model::TensorSpec>& tensors,
                                  const std::vector<model::Bucket>& buckets) {
  std::vector<bool> telling(buckets.size(), true);
  bool any_large = false;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    for_own_codecs(tensors, buckets[b], [&](const std::string& /*codec*/) { telling[b] = false; });
    any_large |= telling[b] && !model::is_small(buckets[b].bytes);
  }
  return any_large ? telling : std::vector<bool>(buckets.size(), true);
}

std::vector<std::string> names_of(const LinkFailover& links) {
  std::vector<std::string> names;
  for (std::uint32_t link = 0; link < links.size(); ++link) names.push_back(links.cost(link).name);
  return names;
}

// The codecs that launches may have. A plan chooses only among codecs that all links can carry.
void choose_codecs(const std::string& job, const JobSettings& settings, const LinkFailover& links, JobCodecs& codecs,
                   sched::Setup& setup) {
  if (!settings.chooses_codecs) {
    setup.codec = static_cast<model::CodecIndex>(settings.codecs.size() - 1);
    if (settings.codecs.back() != nullptr) setup.codec_cost = codecs.priced(names_of(links)).back();
    return;
  }
  if (const std::string link = link_that_cannot(&link::Backend::adds_encoded, links); !link.empty()) {
    LOG(WARNING) << about(job).link(link) << "plans use no codecs, because link " << link << " cannot carry them";
    return;
  }
  setup.codecs = codecs.priced(names_of(links));
}

// For gradients that are in `slots` generations at most.
plan::PlanLimits limits_of(const JobSettings& settings, std::uint32_t slots) {
  plan::PlanLimits limits = plan::training_limits();
  const Config& options = settings.options;
  limits.max_staleness_steps = static_cast<std::uint32_t>(options.integer("max_staleness_steps"));
  limits.max_merged_steps = static_cast<std::uint32_t>(options.integer("max_merged_steps"));
  limits.stale_share = static_cast<double>(options.integer("max_stale_percent")) / 100;
  // A user's own plan may be late, too.
  if (!settings.plan && delays_values(settings.codecs.back())) limits.max_staleness_steps = 0;
  limits.set_slots(slots);
  return limits;
}

// What the options of the job and its links say to any policy. What may be decided later is left out: codecs, plans and other policies.
sched::Setup options_as_setup(const JobSettings& settings, std::vector<model::Bucket> buckets,
                              const LinkFailover& links) {
  const Config& options = settings.options;
  const auto is_given = [&](const char* name) { return options.source(name) != ConfigSource::kDefault; };
  sched::Setup setup;
  setup.policy = settings.policy;
  setup.buckets = std::move(buckets);
  for (std::uint32_t link = 0; link < links.size(); ++link) setup.links.push_back(links.cost(link));
  setup.partition_bytes = options.bytes("partition_bytes");
  setup.credit_bytes = options.bytes("credit_bytes");
  setup.has_user_sizes = is_given("partition_bytes") || is_given("credit_bytes");
  setup.merge_groups = options.text("merge_groups");
  setup.pinned = settings.plan;
  setup.small_overtake = are_all("gloo", links);
  setup.reports_updates = false;  // workers date them by their own schedule
  return setup;
}

}  // namespace

// The hash covers everything that must be the same on all nodes.
std::uint64_t group_hash(const std::vector<model::TensorSpec>& specs, const wire::DeclareAgreed& agreed) {
  std::uint64_t hash = stable_hash({});
  const auto mix = [&hash](std::string_view text) { hash = stable_hash("\xff", stable_hash(text, hash)); };
  for (const auto& spec : specs) {
    mix(spec.describe());
    mix(std::to_string(spec.forward_position));
  }
  for (const auto& bucket : agreed.buckets) mix(std::to_string(bucket.offset) + "+" + std::to_string(bucket.bytes));
  return hash;
}

Result<std::optional<wire::DeclareAgreed>> GroupCoordinator::declare(std::size_t node, wire::Declare declare,
                                                                     const LinkFailover& links,
                                                                     const NameOfNode& name_of) {
  if (agreed()) return std::nullopt;
  declared_[node] = std::move(declare);
  for (const auto& declared : declared_)
    if (!declared) return std::nullopt;
  if (const auto text = difference(declared_, id_.group, name_of))
    return fail(ErrorKind::kMismatch, *text, "all ranks must train the same model, declared in the same order");
  auto agreement = agree(links);
  if (!agreement) return tl::unexpected(agreement.error().in("group '" + declared_.front()->name + "'"));
  return std::move(*agreement);
}

Result<wire::DeclareAgreed> GroupCoordinator::agree(const LinkFailover& links) {
  const wire::Declare& first = *declared_.front();
  auto layout = model::lay_out(first.tensors, first.slots);
  if (!layout) return tl::unexpected(layout.error());
  if (auto ok = check_own_codecs(first.tensors, links); !ok) return tl::unexpected(ok.error());
  const Config& options = settings_.options;
  auto buckets = partition::cut_buckets(
      first.tensors, *layout,
      {options.text("bucketing"), settings_.policy, options.bytes("bucket_bytes"), options.bytes("partition_bytes")});
  if (!buckets) return tl::unexpected(buckets.error());
  wire::DeclareAgreed agreement{.group = id_.group, .buckets = {}, .hash = 0};
  for (const auto& bucket : *buckets) agreement.buckets.push_back({bucket.offset, bucket.bytes});
  agreement.hash = group_hash(first.tensors, agreement);
  model::set_coded_bytes(*buckets, first.tensors, *layout, options.bytes("compression_min_bytes"));
  if (auto ok = start_scheduler(std::move(*buckets), links); !ok) return tl::unexpected(ok.error());
  LOG(INFO) << about(id_.job).of(id_.user) << "group '" << first.name << "': " << first.tensors.size() << " tensors, "
            << layout->slot_bytes << " bytes, " << agreement.buckets.size() << " buckets, policy " << settings_.policy;
  return agreement;
}

Result<void> GroupCoordinator::start_scheduler(std::vector<model::Bucket> buckets, const LinkFailover& links) {
  const wire::Declare& first = *declared_.front();
  sched::Setup setup = options_as_setup(settings_, std::move(buckets), links);
  setup.limits = limits_of(settings_, first.slots);
  if (offload_) setup.plan_runner = std::make_shared<OffloadedPlans>(offload_);
  setup.no_halves = why_no_halves(settings_, first.tensors, links);
  keep_low_rank_uncut(settings_, first.tensors, setup.buckets);
  if (first.op == model::ReduceOp::kSum) choose_codecs(id_.job, settings_, links, codecs_.of_job, setup);
  codecs_.list = setup.codecs;
  codecs_.telling = telling_buckets(first.tensors, setup.buckets);
  setup.guard = preserver_ = make_preserver(setup.limits);
  if (settings_.chooses_codecs)
    for (const auto& bucket : setup.buckets) codecs_.coded_shares.push_back(model::coded_share(bucket));
  const bool is_switchable = is_exact(*find_policy(settings_.policy));
  if (is_switchable) setup.selector = make_selector(links);
  auto scheduler = is_switchable ? sched::make_switching(setup) : sched::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error());
  scheduler_ = sched::measured(std::move(*scheduler), setup);
  schedules_.resize(setup.buckets.size());
  for (std::uint32_t link = 0; link < links.size(); ++link)
    if (!links.lost(link).empty()) scheduler_->link_lost(link);
  return {};
}

// A link's cost is told by the bytes that it carries. If all launches have one codec, the gradients' bytes tell as much.
std::uint64_t GroupCoordinator::GroupCodecs::link_bytes(const sched::Launch& launch) const {
  return coded_shares.empty()
             ? sched::link_bytes(launch)
             : list.at(launch.codec).wire_bytes(coded_shares[launch.bucket], launch.bytes, launch.link);
}

bool GroupCoordinator::GroupCodecs::takes_residuals(const model::UpdateSchedule& schedule,
                                                    const sched::Launch& launch) const {
  if (launch.half != model::AllReduceHalf::kBoth) return false;
  return std::ranges::any_of(
      exact_steps, [&](std::uint64_t step) { return schedule.of_step(step).generation == launch.generation; });
}

std::optional<std::uint64_t> GroupCoordinator::measured_bytes(const sched::Launch& launch) const {
  if (codecs_.takes_residuals(schedules_[launch.bucket], launch) || !codecs_.telling[launch.bucket])
    return std::nullopt;
  return codecs_.link_bytes(launch);
}

// Only a policy's own plans that may delay or round something are judged.
std::shared_ptr<PlanPreserver> GroupCoordinator::make_preserver(const plan::PlanLimits& limits) const {
  if (settings_.options.text("preserver") == "off" || settings_.plan ||
      !find_policy(settings_.policy)->delays_updates || (limits.max_staleness_steps == 0 && !settings_.chooses_codecs))
    return nullptr;
  std::vector<std::string> codecs;
  for (const auto& codec : codecs_.list) codecs.push_back(codec.name);
  return std::make_shared<PlanPreserver>(id_.world, declared_.size(), settings_.options.number("preserver"),
                                         settings_.timeout_us / 10, std::move(codecs));
}

void GroupCoordinator::bucket_ready(model::BucketIndex bucket, std::uint64_t generation, TimeUs now_us) {
  if (bucket == 0) newest_ = std::max(newest_, generation);
  const std::uint64_t step = schedules_[bucket].at(generation).last_step;
  shown_.step_times.gradient_came(step, now_us);
  scheduler_->bucket_ready(bucket, step, now_us);
}

void GroupCoordinator::stage_began(sched::Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) {
  const bool is_behind = schedules_.front().of_step(step).generation < newest_;
  if (is_behind || is_far_ahead(schedules_.front(), step, newest_ + declared_.front()->slots)) return;
  scheduler_->stage_began(stage, step, now_us, waited_us);
}

Result<void> GroupCoordinator::residuals_asked_for(std::uint64_t step) {
  if (!agreed() || is_far_ahead(schedules_.front(), step == 0 ? 0 : step - 1, newest_ + declared_.front()->slots))
    return fail(ErrorKind::kViolation,
                "residuals were asked for at step " + std::to_string(step) + ", which is far ahead");
  codecs_.exact_steps.insert(step);
  if (codecs_.exact_steps.size() > kShown) codecs_.exact_steps.erase(codecs_.exact_steps.begin());
  return {};
}

Result<void> GroupCoordinator::flushed(std::uint64_t step, TimeUs now_us) {
  if (!agreed() || step == 0 || is_far_ahead(schedules_.front(), step - 1, newest_ + declared_.front()->slots))
    return fail(ErrorKind::kViolation, "a flush before step " + std::to_string(step) + ", which is far ahead");
  model::cut(schedules_, step);
  scheduler_->flushed(step, now_us);
  return {};
}

const sched::Launch* GroupCoordinator::outstanding(std::uint64_t number) const {
  const auto it = outstanding_.find(number);
  return it == outstanding_.end() ? nullptr : &it->second;
}

void GroupCoordinator::finished(std::uint64_t number, TimeUs now_us) {
  const auto launch = outstanding_.extract(number);
  if (launch) scheduler_->part_finished(launch.mapped(), now_us);
}

void GroupCoordinator::take_statistics(std::size_t node, const wire::GradientStatistics& statistics) {
  if (preserver_) preserver_->take(node, statistics);
}

std::optional<wire::PlanOrder> GroupCoordinator::take_plan() {
  if (const auto fusion = scheduler_->take_fusion(); fusion && fusion->starts.empty()) {
    shown_.merging = nullptr;
  } else if (fusion) {
    shown_.merging = merging_of(*fusion, id_.group, schedules_.size());
    LOG(INFO) << about(id_.job).of(id_.user) << "merged " << schedules_.size() << " buckets into "
              << fusion->starts.size() << " transfers from step " << fusion->step << " on, because of "
              << fusion->reason << ": " << shown_.merging["groups"].get<std::string>();
  }
  const auto change = scheduler_->take_switch();
  if (!change) return std::nullopt;
  model::follow(schedules_, change->step, change->plan.cycles);
  shown_.plans.push_back(summary(id_.group, ++epoch_, *change, codecs_.list));
  if (change->decision && preserver_) {
    shown_.plans.back()["judgement"] = to_json(*change->decision);
    shown_.plans.back()["judgement"]["statistics"] = preserver_->statistics();
  }
  if (shown_.plans.size() > kShown) shown_.plans.erase(shown_.plans.begin());
  LOG(INFO) << about(id_.job).of(id_.user) << "plan " << epoch_ << " from step " << change->step << " on, because of "
            << change->reason << ": " << shown_.plans.back().dump();
  return wire::PlanOrder{id_.group, epoch_, change->step, change->plan, change->reason};
}

std::vector<sched::PolicyChange> GroupCoordinator::take_policy_changes() {
  std::vector<sched::PolicyChange> changes;
  while (auto change = scheduler_->take_policy_change()) {
    nlohmann::json simulated = nlohmann::json::array();
    for (const auto& forecast : change->forecasts)
      simulated.push_back({{"policy", to_text(forecast.choice)}, {"step_us", std::llround(forecast.step_us)}});
    shown_.policies.push_back({{"group", id_.group},
                               {"from_step", change->step},
                               {"policy", to_text(change->choice)},
                               {"partition_bytes", change->sizes.partition_bytes},
                               {"credit_bytes", change->sizes.credit_bytes},
                               {"reason", change->reason},
                               {"simulated", simulated}});
    if (change->before_us) shown_.policies.back()["before_us"] = std::llround(*change->before_us);
    if (change->after_us) shown_.policies.back()["after_us"] = std::llround(*change->after_us);
    if (shown_.policies.size() > kShown) shown_.policies.erase(shown_.policies.begin());
    LOG(INFO) << about(id_.job).of(id_.user) << "policy " << to_text(change->choice) << " from step " << change->step
              << " on, because " << change->reason << ": " << shown_.policies.back().dump();
    changes.push_back(*std::move(change));
  }
  return changes;
}

std::optional<wire::LaunchOrder> GroupCoordinator::take_launches(LinkFailover& links, TimeUs now_us) {
  const auto launches = scheduler_->take_launches(now_us);
  if (launches.empty()) return std::nullopt;
  wire::LaunchOrder order{.first = links.next_number(), .launches = {}};
  order.launches.reserve(launches.size());
  for (const auto& launch : launches) {
    outstanding_.emplace(links.order(launch.link, codecs_.link_bytes(launch)), launch);
    const model::UpdateWindow when = schedules_[launch.bucket].at(launch.generation);
    const bool exact = codecs_.takes_residuals(schedules_[launch.bucket], launch);
    const model::CodecIndex codec = exact ? model::kWithResiduals : launch.codec;
    order.launches.push_back({launch.link, id_.group, launch.bucket, launch.generation, launch.offset, launch.bytes,
                              when.last_step, when.cycle_step, launch.priority, codec, launch.half});
  }
  return order;
}

void GroupCoordinator::add_status(nlohmann::json& leader) const {
  for (const auto& plan : shown_.plans) leader["plans"].push_back(plan);
  for (const auto& policy : shown_.policies) leader["policies"].push_back(policy);
  const nlohmann::json now =
      shown_.policies.empty() ? nlohmann::json(settings_.policy) : shown_.policies.back()["policy"];
  auto& in_force = leader["policies_in_force"];
  if (std::ranges::find(in_force, now) == in_force.end()) in_force.push_back(now);
  if (!shown_.merging.is_null()) leader["merging"].push_back(shown_.merging);
  leader["step_times"].push_back(
      {{"group", id_.group}, {"first_step", shown_.step_times.first_step()}, {"us", shown_.step_times.us()}});
  if (!preserver_) return;
  leader["preserver"].push_back(preserver_->status());
  leader["preserver"].back()["group"] = id_.group;
}

}  // namespace deft::daemon
