#include "core/partition/rebucket.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>

#include "core/model/buckets.h"
#include "core/model/fusion.h"
#include "core/model/profile.h"

namespace deft::partition {
namespace {

using Cuts = std::vector<std::uint64_t>;
using model::fastest_link;
using model::produced;
using model::Profile;
using model::ready_times;

constexpr double kCapacityShare = 0.95;             // a little slack, so that jitter pushes nothing out of its stage
constexpr std::uint64_t kLeastPieceBytes = 65'536;  // below this a piece is all latency

// What one transfer on `link` takes for the slice [begin, end) of the arena, at its dearest.
double slice_cost_us(const Profile& profile, std::size_t link, std::uint64_t begin, std::uint64_t end) {
  double fixed_us = 0;
  double us = 0;
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < profile.buckets.size() && at < end; ++i) {
    const std::size_t bucket = produced(profile, i);
    const std::uint64_t bytes = profile.buckets[bucket].bytes;
    const std::uint64_t first = std::max(begin, at);
    const std::uint64_t last = std::min(end, at + bytes);
    at += bytes;
    if (first >= last) continue;
    const auto cost = profile.cost(bucket, link);
    fixed_us = std::max(fixed_us, cost.fixed_us);
    us += static_cast<double>(last - first) * cost.us_per_byte;
  }
  return fixed_us + us;
}

// Pieces of equal size, as many as it takes on the slowest link; what no cutting can help stays whole.
std::uint64_t pieces_needed(const Profile& profile, std::uint64_t begin, std::uint64_t end, double capacity_us) {
  std::uint64_t pieces = 1;
  for (std::size_t link = 0; link < profile.links.size(); ++link) {
    const double whole_us = slice_cost_us(profile, link, begin, end);
    const double latency_us = profile.links[link].latency_us;
    if (whole_us <= capacity_us || latency_us >= capacity_us) continue;
    const double count = std::ceil(std::max(0.0, whole_us - latency_us) / (capacity_us - latency_us));
    const std::uint64_t most = std::max<std::uint64_t>(1, (end - begin) / kLeastPieceBytes);
    pieces = std::max(pieces, static_cast<std::uint64_t>(std::min(count, static_cast<double>(most))));
  }
  return pieces;
}

}  // namespace

Cuts mgwfbp_cuts(const Profile& profile) {
  Cuts cuts;
  std::uint64_t at = 0;
  std::size_t i = 0;
  for (const auto start : model::fused_starts(profile)) {
    for (; i < start; ++i) at += profile.buckets[produced(profile, i)].bytes;
    cuts.push_back(at);
  }
  return cuts;
}

Cuts usbyte_cuts(const Profile& profile, std::uint64_t unit_bytes) {
  const std::size_t link = fastest_link(profile);
  const auto ready_us = ready_times(profile);
  Cuts cuts;
  std::vector<std::uint64_t> begin(ready_us.size(), 0);  // of the rest of each bucket
  std::vector<std::uint64_t> end(ready_us.size(), 0);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < ready_us.size(); ++i) {
    begin[i] = at;
    end[i] = at += profile.buckets[produced(profile, i)].bytes;
  }
  std::priority_queue<std::size_t> ready;  // the last produced is the first needed
  double now_us = 0;
  std::size_t arrived = 0;
  while (arrived < ready_us.size() || !ready.empty()) {
    if (ready.empty()) now_us = std::max(now_us, ready_us[arrived]);
    while (arrived < ready_us.size() && ready_us[arrived] <= now_us) ready.push(arrived++);
    const std::size_t i = ready.top();
    const auto cost = profile.cost(produced(profile, i), link);
    std::uint64_t bytes = end[i] - begin[i];
    if (arrived < ready_us.size()) {
      const double room_us = ready_us[arrived] - now_us - cost.fixed_us;
      const double unit_us = std::max(1e-9, cost.us_per_byte * static_cast<double>(unit_bytes));
      const double units = std::clamp(std::ceil(room_us / unit_us), 1.0, 1e6);
      bytes = std::min(bytes, static_cast<std::uint64_t>(units) * unit_bytes);
    }
    cuts.push_back(begin[i]);
    now_us += cost.us(bytes);
    begin[i] += bytes;
    if (begin[i] == end[i]) ready.pop();
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

Cuts deft_cuts(const Profile& profile) {
  // Gradients travel during forward, or during the backward of the buckets that come after the first produced one.
  const double backward_us = profile.backward_us() - profile.buckets.back().backward_us;
  const double capacity_us = kCapacityShare * std::min(profile.forward_us(), backward_us);
  const Cuts blocks = usbyte_cuts(profile, kDeftUnitBytes);
  const std::uint64_t total = profile.bytes();
  Cuts cuts;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint64_t end = i + 1 < blocks.size() ? blocks[i + 1] : total;
    const std::uint64_t pieces = pieces_needed(profile, blocks[i], end, capacity_us);
    const std::uint64_t even = (end - blocks[i] + pieces - 1) / pieces;
    const std::uint64_t size = model::round_up(even, model::kPartAlignBytes);
    for (std::uint64_t at = blocks[i]; at < end; at += size) cuts.push_back(at);
  }
  return cuts;
}

}  // namespace deft::partition
