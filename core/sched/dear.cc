// DeAR (Zhang et al., 2023): an all-reduce is two launches. The reduce-scatters of fused buckets go in the order of readiness,
// behind backward. The all-gathers go in the order in which the next forward needs them, so each layer's forward waits for its
// own bytes alone. Nothing is sent twice, and no part has to overtake another.
//
// The all-gathers of a step begin when its last reduce-scatter has ended. An all-gather covers the bytes of one
// reduce-scatter launch, because the nodes' shares depend on them. Runs are so long that the latency of a half is about a tenth of
// its time; that is decided anew with each measured profile.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "core/sched/policies.h"
#include "core/sched/profile_watch.h"
#include "core/sched/run_scheduler.h"

namespace deft::sched {
namespace {

constexpr double kLatenciesARun = 20;  // a half takes as long as so many latencies would move bytes, halved
constexpr std::uint64_t kLeastRunBytes = 512 << 10, kMostRunBytes = 25 << 20;
constexpr std::size_t kLookAhead = 64;  // all-gathers that one call considers

std::uint64_t run_bytes(const std::vector<model::LinkModel>& links) {
  double most = 0;
  for (const auto& link : links) most = std::max(most, kLatenciesARun * link.latency_us * link.bytes_per_us);
  return static_cast<std::uint64_t>(
      std::clamp(most, static_cast<double>(kLeastRunBytes), static_cast<double>(kMostRunBytes)));
}

class Dear final : public RunScheduler {
 public:
  explicit Dear(const Setup& setup)
      : RunScheduler(setup, runs(setup, run_bytes(setup.links))), setup_(setup), watch_(setup.links.size(), true) {
    for (const auto& bucket : setup.buckets) step_bytes_ += bucket.bytes;
  }

  std::vector<Launch> take_launches(TimeUs now_us) override {
    auto launches = RunScheduler::take_launches(now_us);
    take_gathers(now_us, launches);
    return launches;
  }

  void part_finished(const Launch& launch, TimeUs now_us) override {
    RunScheduler::part_finished(launch, now_us);
    if (launch.part != LaunchPart::kReduceScatter) return;
    Step& step = steps_[launch.generation];
    step.scattered_bytes += launch.bytes;
    step.gathers.emplace(bucket(last_bucket_of(launch)).forward_position, launch);
  }

  void link_lost(model::LinkIndex link) override {
    RunScheduler::link_lost(link);
    watch_.link_lost(link);
  }

  [[nodiscard]] bool wants_profile(std::uint64_t step) const override { return watch_.is_due(step); }
  void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs) override {
    if (!watch_.look(profile, step)) return;
    watch_.decided(profile);
    const model::Profile rest = watch_.remaining(profile);
    std::vector<model::LinkModel> links;
    for (std::size_t link = 0; link < rest.links.size(); ++link) links.push_back(rest.link_model(link));
    change_runs(runs(setup_, run_bytes(links)));
  }

 private:
  struct Step {  // whose all-gathers have not all been launched
    std::uint64_t scattered_bytes = 0;
    std::multimap<std::uint32_t, Launch> gathers;  // by the forward position of the bucket that forward needs first
  };

  // The last run is short: forward needs it first, and nothing hides it.
  static RunStarts runs(const Setup& setup, std::uint64_t bytes) {
    return runs_of_bytes_from_end(setup.buckets, std::max(kLeastRunBytes, bytes / 4), bytes);
  }

  [[nodiscard]] LaunchPart part_of_launches() const override { return LaunchPart::kReduceScatter; }

  // Buckets lie in the order of backward, so forward needs the last one first.
  [[nodiscard]] model::BucketIndex last_bucket_of(const Launch& launch) const {
    model::BucketIndex last = launch.bucket;
    for (std::uint64_t end = launch.offset + launch.bytes; end > bucket(last).bytes; ++last) end -= bucket(last).bytes;
    return last;
  }

  void take_gathers(TimeUs now_us, std::vector<Launch>& launches) {
    std::vector<double> free_at_us;
    board_.list_free_at_us(now_us, free_at_us);
    std::size_t looks = kLookAhead;
    for (auto step = steps_.begin(); step != steps_.end() && step->second.scattered_bytes == step_bytes_;) {
      auto& gathers = step->second.gathers;
      for (auto next = gathers.begin(); next != gathers.end() && looks > 0; --looks)
        next = gather(next->second, now_us, free_at_us, launches) ? gathers.erase(next) : std::next(next);
      if (!gathers.empty()) return;
      step = steps_.erase(step);
    }
  }

  // Launches the all-gather on the link on which it ends first, if that link has room for it.
  bool gather(Launch launch, TimeUs now_us, std::vector<double>& free_at_us, std::vector<Launch>& launches) {
    launch.part = LaunchPart::kAllGather;
    const std::uint64_t bytes = link_bytes(launch);
    launch.link = board_.give_to_earliest(bytes, free_at_us);
    if (board_.room_bytes(launch.link) < bytes) return false;
    send(launch, now_us);
    launches.push_back(launch);
    return true;
  }

  const Setup setup_;
  ProfileWatch watch_;
  std::uint64_t step_bytes_ = 0;
  std::map<std::uint64_t, Step> steps_;  // by generation
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_dear(const Setup& setup) {
  if (!setup.no_halves.empty())
    return fail(ErrorKind::kInvalid, "policy dear splits all-reduces into halves, and " + setup.no_halves,
                "choose bytescheduler, or links that have halves: gloo or mpi");
  return std::make_unique<Dear>(setup);
}

}  // namespace deft::sched
