#include "daemon/leader/codec_slowdowns.h"

#include <algorithm>

#include "core/sched/step_timer.h"

namespace deft::daemon {

void CodecSlowdowns::take(std::size_t node, std::span<const wire::CodecTime> times) {
  ++messages_;
  for (const wire::CodecTime& time : times) {
    Seen& seen = nodes_[node][time.codec];
    seen.bytes += time.bytes;
    seen.us += time.encode_us + time.decode_us;
    seen.newest = messages_;
    if (seen.bytes < kLeastBytes) continue;
    seen.us_per_byte.add(seen.us / static_cast<double>(seen.bytes));
    seen.bytes = 0;
    seen.us = 0;
    if (seen.us_per_byte.count() >= 2 * kKept) seen.patience = kPatience;  // it is in use
  }
  drop_old();
}

// Nodes send messages at the same rate. One whose workers have left sends none, and its values grow old nevertheless.
void CodecSlowdowns::drop_old() {
  for (auto& codecs : nodes_)
    for (Seen& seen : codecs)
      if (seen.newest > 0 && messages_ - seen.newest >= seen.patience * nodes_.size())
        seen = Seen{.patience = std::min(2 * seen.patience, kMostPatience)};
}

std::optional<double> CodecSlowdowns::measured(std::size_t node, std::size_t codec) const {
  const auto& values = nodes_[node][codec].us_per_byte;
  if (values.size() < kFirst || guessed_[codec] <= 0) return std::nullopt;
  return std::clamp(sched::lower_third({values.begin(), values.end()}) / guessed_[codec], kLeastTimes, kMostTimes);
}

std::optional<double> CodecSlowdowns::concluded(std::size_t node) const {
  std::optional<double> least;
  for (std::size_t codec = 0; codec < guessed_.size(); ++codec)
    if (const auto times = measured(node, codec)) least = std::min(least.value_or(*times), *times);
  return least;
}

CodecSlowdowns::Slowest CodecSlowdowns::of(std::size_t codec) const {
  Slowest slowest;
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    const auto own = measured(node, codec);
    const auto times = own ? own : concluded(node);
    if (!times || (slowest.node && *times <= slowest.times)) continue;
    slowest = {*times, node, own.has_value()};
  }
  return slowest;
}

}  // namespace deft::daemon
