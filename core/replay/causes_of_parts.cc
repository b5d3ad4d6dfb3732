// Causes in the order of sending, and in the size of parts.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "core/base/config.h"
#include "core/base/quantities.h"
#include "core/replay/causes.h"
#include "core/replay/explain.h"
#include "core/replay/launches.h"
#include "core/replay/replay.h"
#include "core/replay/worker_steps.h"

namespace deft::replay {
namespace {

constexpr double kOtherSize = 1.5;              // sizes that differ by less are the same
constexpr std::size_t kMostPairs = 10'000'000;  // of parts that are compared: as many as a second allows
constexpr double kLate = 0.15;                  // of backward: its last part, in which gradients come late
constexpr std::array kSizes = {std::uint64_t{64} << 10, std::uint64_t{256} << 10, std::uint64_t{1} << 20,
                               std::uint64_t{4} << 20, std::uint64_t{16} << 20};

// The job with other buckets, whose steps do not vary: that is another cause.
std::optional<MeasuredJob> steady(const MeasuredJob& measured, const std::string& bucketing) {
  auto changed = with_buckets(measured, bucketing);
  if (!changed) return std::nullopt;
  for (auto& node : changed->nodes) node.factors.clear();
  return *std::move(changed);
}

// Buckets and parts of this size.
std::optional<MeasuredJob> with_size(const MeasuredJob& measured, std::uint64_t bytes) {
  auto changed = steady(measured, "uniform:" + std::to_string(bytes));
  if (changed) changed->options["partition_bytes"] = std::to_string(bytes);
  return changed;
}

std::optional<Prediction> replayed(const std::optional<MeasuredJob>& job) {
  if (!job) return std::nullopt;
  auto prediction = replay(*job, {});
  return prediction ? std::optional(*std::move(prediction)) : std::nullopt;
}

// The mean of what the leader's gradients travelled in.
double mean_part_bytes(const std::vector<NodeLaunch>& launches) {
  double bytes = 0, parts = 0;
  for (const auto& launch : launches) {
    if (!launch.order) continue;
    bytes += static_cast<double>(launch.bytes);
    parts += 1;
  }
  return parts > 0 ? bytes / parts : 0;
}

// The links over which the leader has sent nothing.
std::vector<std::string> idle_names(const JobTrace& job, const std::vector<NodeLaunch>& launches) {
  const trace::NodeTrace& leader = job.leader()->trace;
  std::vector<std::string> names;
  for (std::size_t link = 0; job.node_count() > 1 && link < leader.header.links.size(); ++link)
    if (std::ranges::none_of(launches, [&](const NodeLaunch& one) { return one.order && one.link == link; }))
      names.push_back(leader.header.links[link]);
  return names;
}

// The job with one more link, which is like the first one.
MeasuredJob with_link(MeasuredJob measured, const std::string& name) {
  if (measured.profile.links.empty()) return measured;
  model::ProfileLink link = measured.profile.links.front();
  link.name = name;
  measured.profile.links.push_back(std::move(link));
  return measured;
}

double option_bytes(const MeasuredJob& measured, const std::string& name, double fallback) {
  const auto at = measured.options.find(name);
  if (at == measured.options.end()) return fallback;
  const auto config = Config::load(std::vector<std::string>{"--" + name + "=" + at->second}, {}, Audience::kAll);
  return config ? static_cast<double>(config->bytes(name)) : fallback;
}

// "bucket 7 waits for bucket 2": a part that was ready while a less urgent one held the link, and what it waited.
struct Inversion {
  std::uint32_t waits = 0, runs = 0;
  double us = 0;
};

Inversion worst_inversion(const std::vector<NodeLaunch>& launches) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, double> waited;
  std::size_t pairs = 0;
  for (std::size_t i = 0; i < launches.size() && pairs < kMostPairs; ++i) {
    const NodeLaunch& urgent = launches[i];
    if (!urgent.order || !urgent.ready_us || urgent.spans.empty()) continue;
    // Later buckets of the arena are needed first.
    for (std::size_t j = i; j-- > 0 && !launches[j].spans.empty() && launches[j].end_us() > *urgent.ready_us; ++pairs) {
      const NodeLaunch& other = launches[j];
      if (!other.order || other.link != urgent.link || other.order->bucket >= urgent.order->bucket) continue;
      waited[{urgent.order->bucket, other.order->bucket}] +=
          static_cast<double>(other.end_us() - std::max(*urgent.ready_us, other.begin_us()));
    }
  }
  if (waited.empty()) return {};
  const auto worst = std::ranges::max_element(waited, {}, [](const auto& entry) { return entry.second; });
  return {worst->first.first, worst->first.second, worst->second};
}

// Tensors by the bytes that they have in each bucket of the profile.
struct Tensor {
  std::string name;
  std::vector<std::size_t> buckets;  // of the profile
  double bytes = 0;
};

std::vector<Tensor> tensors_of(const trace::TraceGroup& group) {
  std::vector<Tensor> tensors;
  const auto by_tensor = buckets_by_tensor(group);
  for (std::size_t i = 0; i < group.tensors.size(); ++i) {
    Tensor tensor{group.tensors[i].name, {}, static_cast<double>(group.tensors[i].bytes)};
    for (const auto bucket : by_tensor[i]) tensor.buckets.push_back(group.buckets.size() - 1 - bucket);
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// True if backward makes it in its last part. Backward goes from the last bucket of the profile to the first.
bool comes_late(const Tensor& tensor, const model::Profile& profile) {
  double backward_us = 0, after_us = 0;
  const auto last = std::ranges::max_element(tensor.buckets);
  if (last == tensor.buckets.end()) return false;
  for (std::size_t i = 0; i < profile.buckets.size(); ++i) {
    backward_us += profile.buckets[i].backward_us;
    if (i <= *last) after_us += profile.buckets[i].backward_us;
  }
  return after_us <= kLate * backward_us;
}

// The share of it that a codec may encode stays.
void resize(model::ProfileBucket& bucket, std::uint64_t bytes) {
  if (bucket.coded_bytes)
    bucket.coded_bytes = static_cast<std::uint64_t>(bucket.coded_share().share * static_cast<double>(bytes));
  bucket.bytes = bytes;
}

// Its bytes come with the first gradients of backward instead.
MeasuredJob as_if_first(const MeasuredJob& measured, const Tensor& tensor) {
  MeasuredJob changed = measured;
  auto& buckets = changed.profile.buckets;
  double left = tensor.bytes;
  for (const auto bucket : tensor.buckets) {
    const double taken = std::min(left, static_cast<double>(buckets[bucket].bytes - 1));
    resize(buckets[bucket], buckets[bucket].bytes - static_cast<std::uint64_t>(taken));
    left -= taken;
  }
  resize(buckets.back(), buckets.back().bytes + static_cast<std::uint64_t>(tensor.bytes - left));
  return changed;
}

}  // namespace

std::vector<Cause> idle_links(const Evidence& evidence) {
  std::vector<Cause> causes;
  const auto names = idle_names(evidence.job, evidence.launches);
  if (names.empty()) return causes;
  const auto before = replayed(steady(evidence.measured, "profile"));
  for (const std::string& name : names) {
    std::optional<std::pair<double, std::uint64_t>> best;
    for (const auto size : kSizes) {
      if (size > evidence.measured.profile.bytes()) break;
      const auto after = replayed(with_size(with_link(evidence.measured, name), size));
      if (!before || !after || makes_fewer_updates(*after, before->updates_per_step)) continue;
      if (!best || after->step_us_p50 < best->first) best = {after->step_us_p50, size};
    }
    if (!best) continue;
    const bool is_one = mean_part_bytes(evidence.launches) >= static_cast<double>(evidence.measured.profile.bytes());
    const std::string bytes = std::to_string(best->second);
    Cause cause{.cause = "idle-link",
                .where = name,
                .what = name + " carried nothing" + (is_one ? ": all gradients are one part" : "") + "; parts of " +
                        size_words(static_cast<double>(best->second)) + " would use it"};
    cause.options = {{"bucketing", "uniform:" + bytes}, {"partition_bytes", bytes}};
    causes.push_back(with_gain(std::move(cause), before->step_us_p50, best->first));
  }
  return causes;
}

std::vector<Cause> wrong_sizes(const Evidence& evidence) {
  const double now = mean_part_bytes(evidence.launches);
  const auto as_traced = steady(evidence.measured, "profile");
  const auto before = replayed(as_traced);
  if (!before) return {};
  std::optional<std::pair<double, std::uint64_t>> best;
  for (const auto size : kSizes) {
    if (size / 2 > evidence.measured.profile.bytes()) break;
    const auto after = replayed(with_size(evidence.measured, size));
    if (!after || makes_fewer_updates(*after, before->updates_per_step)) continue;
    if (!best || after->step_us_p50 < best->first) best = {after->step_us_p50, size};
  }
  if (!best || now <= 0) return {};
  const auto size = static_cast<double>(best->second);
  if (size < kOtherSize * now && now < kOtherSize * size) return {};
  const bool small = size > now;
  const std::string what = "gradients travel in parts of " + size_words(now) + ", which is too " +
                           (small ? "small" : "large") + ": parts of " + size_words(size) + " are faster";
  const std::string bytes = std::to_string(best->second);
  Cause cause{.cause = small ? "small-parts" : "large-parts", .where = "", .what = what};
  cause.options = {{"bucketing", "uniform:" + bytes}, {"partition_bytes", bytes}};
  return {with_gain(std::move(cause), before->step_us_p50, best->first)};
}

std::vector<Cause> large_credit(const Evidence& evidence) {
  const double credit = option_bytes(evidence.measured, "credit_bytes", 4 << 20);
  std::optional<std::pair<double, double>> best;
  for (const auto bytes : kSizes) {
    if (kOtherSize * static_cast<double>(bytes) > credit) break;
    MeasuredJob changed = evidence.measured;
    changed.options["credit_bytes"] = std::to_string(bytes);
    const double us = replayed_us(changed);
    if (us > 0 && (!best || us < best->first)) best = {us, static_cast<double>(bytes)};
  }
  if (!best) return {};
  Cause cause{.cause = "large-credit",
              .where = "",
              .what = "the credit of " + size_words(credit) + " is too large: " + size_words(best->second)};
  cause.options = {{"credit_bytes", std::to_string(static_cast<std::uint64_t>(best->second))}};
  cause.what += " let urgent gradients go first";
  cause = with_gain(std::move(cause), evidence.step_us, best->first);
  if (cause.share < kLeastReplayedGain)
    return {};  // explain would leave it out, and who waits for whom takes long to find
  if (const Inversion worst = worst_inversion(evidence.launches); worst.us > 0) {
    cause.where = "bucket" + std::to_string(worst.waits);
    cause.what =
        "bucket " + std::to_string(worst.waits) + " waits for bucket " + std::to_string(worst.runs) + ": " + cause.what;
  }
  return {std::move(cause)};
}

std::vector<Cause> late_gradients(const Evidence& evidence) {
  const trace::TraceGroup* const group = largest_group(evidence.job.leader()->trace);
  if (group == nullptr || group->buckets.size() != evidence.measured.profile.buckets.size()) return {};
  std::optional<Tensor> largest;
  for (auto& tensor : tensors_of(*group))
    if (comes_late(tensor, evidence.measured.profile) && (!largest || tensor.bytes > largest->bytes))
      largest = std::move(tensor);
  if (!largest || group->buckets.size() < 2) return {};
  const std::string what = "the gradient of " + largest->name + " comes last: its " + size_words(largest->bytes) +
                           " cannot hide behind backward";
  const auto bucket = group->buckets.size() - 1 - largest->buckets.front();
  return {with_gain({.cause = "late-gradient", .where = "bucket" + std::to_string(bucket), .what = what},
                    evidence.step_us, replayed_us(as_if_first(evidence.measured, *largest)))};
}

}  // namespace deft::replay
