// DeAR (Zhang et al., 2023): an all-reduce is two launches. The reduce-scatters of fused buckets go in the order of readiness,
// behind backward. The all-gathers go in the order in which the next forward needs them, so each layer's forward waits for its
// own bytes alone. Nothing is sent twice, and no part has to overtake another.
//
// The all-gathers of a step begin when its last reduce-scatter has ended. An all-gather covers the bytes of one
// reduce-scatter launch, because the nodes' shares depend on them. Runs are so long that the latency of a half is about a tenth of
// its time on the fastest link. They begin by the links' first models.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "core/sched/measured_runs.h"
#include "core/sched/policies.h"

namespace deft::sched {
namespace {

constexpr double kLatenciesARun = 20;  // a half takes as long as so many latencies would move bytes, halved
constexpr std::uint64_t kLeastRunBytes = 512 << 10, kMostRunBytes = 25 << 20;
constexpr std::size_t kLookAhead = 64;  // all-gathers that one call considers

std::uint64_t run_bytes(const std::vector<model::LinkModel>& links) {
  const auto fastest = std::ranges::max_element(links, {}, &model::LinkModel::bytes_per_us);
  const double bytes = fastest == links.end() ? 0 : kLatenciesARun * fastest->latency_us * fastest->bytes_per_us;
  return static_cast<std::uint64_t>(
      std::clamp(bytes, static_cast<double>(kLeastRunBytes), static_cast<double>(kMostRunBytes)));
}

class Dear final : public MeasuredRuns {
 public:
  explicit Dear(const Setup& setup) : MeasuredRuns(setup, runs(setup.buckets, setup.links)), buckets_(setup.buckets) {
    for (const auto& bucket : setup.buckets) step_bytes_ += bucket.bytes;
  }

  std::vector<Launch> take_launches(TimeUs now_us) override {
    auto launches = MeasuredRuns::take_launches(now_us);
    take_gathers(now_us, launches);
    return launches;
  }

  void part_finished(const Launch& launch, TimeUs now_us) override {
    MeasuredRuns::part_finished(launch, now_us);
    if (launch.half != AllReduceHalf::kReduceScatter) return;
    Step& step = steps_[launch.generation];
    step.scattered_bytes += launch.bytes;
    step.gathers.emplace(bucket(last_bucket_of(launch)).forward_position, launch);
  }

 private:
  struct Step {  // whose all-gathers have not all been launched
    std::uint64_t scattered_bytes = 0;
    std::multimap<std::uint32_t, Launch> gathers;  // by the forward position of the bucket that forward needs first
  };

  // The last run is short: forward needs it first, and nothing hides it.
  static RunStarts runs(const std::vector<model::Bucket>& buckets, const std::vector<model::LinkModel>& links) {
    const std::uint64_t bytes = run_bytes(links);
    return runs_of_bytes_from_end(buckets, std::max(kLeastRunBytes, bytes / 4), bytes);
  }

  [[nodiscard]] RunStarts choose(const model::Profile& profile) const override {
    std::vector<model::LinkModel> links;
    for (std::size_t link = 0; link < profile.links.size(); ++link) links.push_back(profile.link_model(link));
    return runs(buckets_, links);
  }

  [[nodiscard]] AllReduceHalf half_of_launches() const override { return AllReduceHalf::kReduceScatter; }

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
    launch.half = AllReduceHalf::kAllGather;
    const std::uint64_t bytes = link_bytes(launch);
    launch.link = board_.give_to_earliest(bytes, free_at_us);
    if (board_.room_bytes(launch.link) < bytes) return false;
    send(launch, now_us);
    launches.push_back(launch);
    return true;
  }

  const std::vector<model::Bucket> buckets_;
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
