#include "core/replay/traced_codec.h"

#include <algorithm>
#include <vector>

#include "core/base/clock.h"
#include "core/compress/codec_costs.h"
#include "core/compress/registry.h"
#include "core/reduce/reduce.h"

namespace deft::replay {
namespace {

constexpr std::size_t kSummedBytes = std::size_t{64} << 20;       // of all workers: more than a core's cache holds
constexpr std::size_t kLeastPartBytes = 4096, kMostWorkers = 64;  // whatever a trace says
constexpr int kRounds = 3;                                        // the quickest counts

// The same sums here: the time for a byte of each worker.
double sum_us_per_byte(const LocalSums& sums) {
  const std::size_t workers = std::min(sums.workers, kMostWorkers), most = kSummedBytes / workers;
  const double bytes = std::clamp(sums.part_bytes, static_cast<double>(kLeastPartBytes), static_cast<double>(most));
  const std::size_t part = static_cast<std::size_t>(bytes) / sizeof(float) * sizeof(float), parts = most / part;
  std::vector<std::vector<std::byte>> gradients(workers, std::vector<std::byte>(parts * part));
  double quickest_us = 0;
  for (int round = 0; round < kRounds; ++round) {
    const TimeUs began_us = MonotonicClock::now();
    for (std::size_t at = 0; at < parts * part; at += part) {
      std::vector<const std::byte*> inputs;
      for (const auto& worker : gradients) inputs.push_back(worker.data() + at);
      reduce::reduce(gradients.front().data() + at, inputs, part / sizeof(float), model::DType::kFloat32,
                     model::ReduceOp::kSum);
    }
    const auto us = static_cast<double>(std::max<TimeUs>(1, MonotonicClock::now() - began_us));
    quickest_us = round == 0 ? us : std::min(quickest_us, us);
  }
  return quickest_us / static_cast<double>(parts * part);
}

std::vector<std::string> link_names(const MeasuredJob& measured) {
  std::vector<std::string> names;
  for (const auto& link : measured.profile.links) names.push_back(link.name);
  return names;
}

// The codec that encoded the traced gradients; empty: none did, or plans chose among several.
std::string traced_codec(const MeasuredJob& measured) {
  const auto option = measured.options.find("compression");
  if (option == measured.options.end() || measured.profile.codecs.size() != 2) return {};
  return option->second;
}

model::CodecCost cost_here(const compress::Codec& codec, const MeasuredJob& measured, std::size_t nodes) {
  return compress::price_between_nodes(codec, compress::measure_cost(codec), nodes, link_names(measured));
}

// How many times as long the traced daemon takes as this process; at least 1.
double slowness(const MeasuredJob& measured) {
  double times = 1;
  if (const auto traced = compress::make_codec(traced_codec(measured)); traced) {
    const double here_us = cost_here(**traced, measured, measured.nodes.size()).thread_us_per_byte();
    if (here_us > 0) times = measured.profile.codecs.back().thread_us_per_byte() / here_us;
  } else if (measured.local_sums.us_per_byte > 0) {
    times = measured.local_sums.us_per_byte / sum_us_per_byte(measured.local_sums);
  }
  return std::max(1.0, times);
}

}  // namespace

void charge_codecs(MeasuredJob& measured, std::size_t cores) {
  if (cores == 0 || measured.busiest_host.workers < cores) return;
  measured.codec_in_compute = static_cast<double>(measured.busiest_host.nodes) / static_cast<double>(cores);
}

Result<model::CodecCost> codec_cost(const std::string& name, const MeasuredJob& measured, std::size_t nodes) {
  if (name == "none") return model::CodecCost{};
  const auto codec = compress::make_codec(name);
  if (!codec) return tl::unexpected(codec.error());
  model::CodecCost cost = cost_here(**codec, measured, nodes);
  if (name == traced_codec(measured) && nodes == measured.nodes.size()) {
    cost.encode_us_per_byte = measured.profile.codecs.back().encode_us_per_byte;
    cost.decode_us_per_byte = measured.profile.codecs.back().decode_us_per_byte;
    cost.wire_share = measured.profile.codecs.back().wire_share;
    cost.link_shares.clear();  // the links' measured rates are those of its bytes
  } else {
    const double times = slowness(measured);
    cost.encode_us_per_byte *= times;
    cost.decode_us_per_byte *= times;
  }
  cost.name = name;
  return cost;
}

}  // namespace deft::replay
