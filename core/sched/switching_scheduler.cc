#include "core/sched/switching_scheduler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/sched/link_board.h"

namespace deft::sched {
namespace {

std::uint64_t bytes_of_a_step(const std::vector<model::Bucket>& buckets) {
  return std::accumulate(buckets.begin(), buckets.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const model::Bucket& bucket) { return sum + bucket.bytes; });
}

// The policy that the user names. `auto` has none: Deft chooses.
std::optional<PolicyChoice> choice_of(const PolicyTraits& traits) {
  if (traits.id == PolicyId::kAuto) return std::nullopt;
  return PolicyChoice{std::string(traits.name), 0};
}

Result<const PolicyTraits*> exact_policy(const std::string& name) {
  const PolicyTraits* const traits = find_policy(name);
  if (traits == nullptr)
    return fail(ErrorKind::kInvalid, "unknown policy '" + name + "'", "deft check-build lists them all");
  if (traits->simulator_only)
    return fail(ErrorKind::kInvalid, "only the simulator runs policy " + name, "deft simulate --policy " + name);
  if (traits->delays_updates)
    return fail(ErrorKind::kInvalid,
                "a running job cannot change to policy " + name +
                    ", because it delays updates: its workers need an arena with more slots",
                "start the job with DEFT_POLICY=" + name);
  return traits;
}

std::string to_text(const LaunchSizes& sizes) {
  return "partition_bytes " + std::to_string(sizes.partition_bytes) + " and credit_bytes " +
         std::to_string(sizes.credit_bytes);
}

}  // namespace

Result<std::unique_ptr<SwitchingScheduler>> SwitchingScheduler::make(const Setup& setup) {
  const auto traits = exact_policy(setup.policy);
  if (!traits) return tl::unexpected(traits.error());
  const auto choice = choice_of(**traits);
  std::unique_ptr<SwitchingScheduler> made(
      new SwitchingScheduler(setup, choice.value_or(PolicyChooser::first_choice())));
  auto first = made->make_policy(made->eras_.back().choice, made->sizes_);
  if (!first) return tl::unexpected(first.error());
  made->eras_.back().scheduler = *std::move(first);
  return made;
}

SwitchingScheduler::SwitchingScheduler(const Setup& setup, const PolicyChoice& start)
    : setup_(setup),
      lost_(setup.links.size()),
      sizes_{setup.partition_bytes, setup.credit_bytes},
      chooser_(setup, start) {
  if (setup.policy != "auto") chooser_.keep();
  eras_.push_back({.number = eras_begun_++, .begins = 0, .choice = start, .sizes = sizes_, .scheduler = nullptr});
}

Result<std::unique_ptr<Scheduler>> SwitchingScheduler::make_policy(const PolicyChoice& choice,
                                                                   const LaunchSizes& own_sizes) const {
  const LaunchSizes sizes = choice.sizes.value_or(own_sizes);
  Setup setup = setup_;
  setup.policy = choice.policy;
  setup.partition_bytes = sizes.partition_bytes;
  setup.credit_bytes = sizes.credit_bytes;
  setup.fused_bytes = choice.fused_bytes;
  setup.selector = nullptr;
  auto made = make_scheduler(setup);
  if (!made) return made;
  for (model::LinkIndex link = 0; link < lost_.size(); ++link)
    if (lost_[link]) (*made)->link_lost(link);
  return made;
}

// The first event of a step's backward is the border between policies.
void SwitchingScheduler::backward_of(std::uint64_t step, TimeUs now_us) {
  if (step < reached_) return;
  reached_ = step + 1;
  const bool is_named = std::exchange(has_new_sizes_, false);
  const bool is_resized = sizes_ != eras_.back().sizes || (is_named && eras_.back().choice.sizes);
  if (is_resized || is_named) chooser_.sizes_changed(sizes_);
  auto change = chooser_.take_change();
  if (!change && !is_resized) return;
  if (!change) {
    change = PolicyChange{
        .choice = eras_.back().choice, .reason = "the user set " + to_text(sizes_), .why = model::PolicyReason::kUser};
    change->choice.sizes.reset();
  }
  change->step = step;
  change->sizes = change->choice.sizes.value_or(sizes_);
  const bool is_other = is_resized || change->choice != eras_.back().choice;
  if (is_other && !begin_era(change->choice, step, now_us)) return;
  changes_.push_back(*std::move(change));
}

bool SwitchingScheduler::begin_era(const PolicyChoice& choice, std::uint64_t step, TimeUs now_us) {
  auto policy = make_policy(choice, sizes_);
  if (!policy) {
    sizes_ = eras_.back().sizes;
    chooser_.in_force(eras_.back().choice, step);
    return false;
  }
  if (profile_ && (*policy)->wants_profile(step)) (*policy)->profile_measured(*profile_, step, now_us);
  eras_.push_back(
      {.number = eras_begun_++, .begins = step, .choice = choice, .sizes = sizes_, .scheduler = *std::move(policy)});
  chooser_.in_force(choice, step);
  drop_finished_eras();
  return true;
}

// An era has ended when all bytes of its steps are reduced. A worker names the steps, so they may be more than any job has.
void SwitchingScheduler::drop_finished_eras() {
  const std::uint64_t step_bytes = bytes_of_a_step(setup_.buckets);
  for (auto era = eras_.begin(); std::next(era) != eras_.end();) {
    std::uint64_t all_bytes = 0;
    const bool is_too_long = __builtin_mul_overflow(std::next(era)->begins - era->begins, step_bytes, &all_bytes);
    era = !is_too_long && era->reduced_bytes == all_bytes ? eras_.erase(era) : std::next(era);
  }
}

void SwitchingScheduler::stage_began(Stage stage, std::uint64_t step, TimeUs now_us, TimeUs waited_us) {
  chooser_.stage_began(stage, step, now_us, waited_us);
  if (stage == Stage::kBackward) backward_of(step, now_us);
  current().stage_began(stage, step, now_us, waited_us);
}

void SwitchingScheduler::bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs now_us) {
  backward_of(step, now_us);
  const auto era =
      std::ranges::find_if(eras_.rbegin(), eras_.rend(), [&](const Era& one) { return one.begins <= step; });
  era->scheduler->bucket_ready(bucket, step, now_us);
}

std::vector<Launch> SwitchingScheduler::take_launches(TimeUs now_us) {
  std::vector<Launch> all;
  for (Era& era : eras_)
    for (Launch launch : era.scheduler->take_launches(now_us)) {
      in_flight_.emplace(launches_, InFlight{era.number, launch.id});
      launch.id = launches_++;
      all.push_back(launch);
    }
  return all;
}

void SwitchingScheduler::part_finished(const Launch& launch, TimeUs now_us) {
  const auto found = in_flight_.extract(launch.id);
  if (!found) return;
  const auto era = std::ranges::find(eras_, found.mapped().era, &Era::number);
  Launch own = launch;
  own.id = found.mapped().id;
  era->scheduler->part_finished(own, now_us);
  if (launch.half != AllReduceHalf::kReduceScatter) era->reduced_bytes += launch.bytes;
  drop_finished_eras();
}

std::vector<Update> SwitchingScheduler::take_updates() {
  std::vector<Update> all;
  for (Era& era : eras_) {
    const auto updates = era.scheduler->take_updates();
    all.insert(all.end(), updates.begin(), updates.end());
  }
  return all;
}

// What an era has merged ends with it.
std::optional<BucketFusion> SwitchingScheduler::take_fusion() {
  Era& era = eras_.back();
  auto fusion = era.scheduler->take_fusion();
  const bool is_first = !std::exchange(era.is_fusion_told, true);
  if (!fusion && is_first && era.number > 0) return BucketFusion{.step = era.begins, .starts = {}, .reason = {}};
  return fusion;
}

void SwitchingScheduler::link_measured(model::LinkIndex link, const model::LinkModel& measured) {
  if (is_sane(measured)) setup_.links.at(link) = measured;
  for (Era& era : eras_) era.scheduler->link_measured(link, measured);
}

void SwitchingScheduler::link_lost(model::LinkIndex link) {
  lost_.at(link) = true;
  chooser_.link_lost(link);
  for (Era& era : eras_) era.scheduler->link_lost(link);
}

bool SwitchingScheduler::wants_profile(std::uint64_t step) const {
  return chooser_.wants_profile(step) || current().wants_profile(step);
}

void SwitchingScheduler::profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs now_us) {
  profile_ = profile;
  if (current().wants_profile(step)) current().profile_measured(profile, step, now_us);
  if (chooser_.wants_profile(step)) chooser_.profile_measured(profile, step);
}

Result<void> SwitchingScheduler::check_change(const SettingsChange& change) const {
  PolicyChoice choice = eras_.back().choice;
  if (change.policy) {
    const auto traits = exact_policy(*change.policy);
    if (!traits) return tl::unexpected(traits.error());
    choice = choice_of(**traits).value_or(choice);
  }
  choice.sizes.reset();  // the user's count from now on
  if (auto possible = make_policy(choice, change.sizes_after(sizes_)); !possible)
    return tl::unexpected(possible.error());
  return {};
}

Result<void> SwitchingScheduler::change_settings(const SettingsChange& change) {
  if (auto ok = check_change(change); !ok) return ok;
  sizes_ = change.sizes_after(sizes_);
  has_new_sizes_ |= change.partition_bytes || change.credit_bytes;
  if (change.policy) chooser_.pin(choice_of(*find_policy(*change.policy)));
  return {};
}

std::optional<PolicyChange> SwitchingScheduler::take_policy_change() {
  if (changes_.empty()) return std::nullopt;
  PolicyChange change = std::move(changes_.front());
  changes_.pop_front();
  return change;
}

Result<std::unique_ptr<Scheduler>> make_switching(const Setup& setup) { return SwitchingScheduler::make(setup); }

}  // namespace deft::sched
