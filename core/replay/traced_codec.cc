#include "core/replay/traced_codec.h"

#include <algorithm>
#include <vector>

#include "core/base/clock.h"
#include "core/base/policy_traits.h"
#include "core/compress/codec_costs.h"
#include "core/compress/compression_option.h"
#include "core/compress/registry.h"
#include "core/reduce/reduce.h"

namespace deft::replay {
namespace {

constexpr std::size_t kSummedBytes = std::size_t{64} << 20;      // of all workers: more than a core's cache holds
constexpr std::size_t kLeastPartBytes = 4096, kMostSummed = 64;  // whatever a trace says
constexpr int kRounds = 3;                                       // the quickest counts

// The same sums here: the time for a byte of each worker.
double sum_us_per_byte(const LocalSums& sums) {
  const std::size_t workers = std::min(sums.workers, kMostSummed), most = kSummedBytes / workers;
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

// The cost of a codec in the trace. Null if it encoded none of the traced gradients.
const model::CodecCost* traced_cost(const MeasuredJob& measured, const std::string& name) {
  const auto& codecs = measured.profile.codecs;
  const auto at = std::ranges::find(codecs, name, &model::CodecCost::name);
  const bool was_used = at != codecs.end() && (at->wire_share < 1 || at->thread_us_per_byte() > 0);
  return was_used ? &*at : nullptr;
}

model::CodecCost cost_here(const compress::Codec& codec, const MeasuredJob& measured, std::size_t nodes) {
  return compress::price_between_nodes(codec, compress::measure_cost(codec), nodes, link_names(measured));
}

// How many times as long the traced daemon takes as this process; at least 1.
double slowness(const MeasuredJob& measured) {
  double times = 1;
  const model::CodecCost* const traced = traced_cost(measured, measured.profile.codecs.back().name);
  if (const auto codec = compress::make_codec(measured.profile.codecs.back().name); traced != nullptr && codec) {
    const double here_us = cost_here(**codec, measured, measured.node_count).thread_us_per_byte();
    if (here_us > 0) times = traced->thread_us_per_byte() / here_us;
  } else if (measured.local_sums.us_per_byte > 0) {
    times = measured.local_sums.us_per_byte / sum_us_per_byte(measured.local_sums);
  }
  return std::max(1.0, times);
}

}  // namespace

void charge_codecs(MeasuredJob& measured, std::size_t cores) {
  if (cores == 0 || measured.busiest_host.workers < cores) return;
  const BusiestHost& host = measured.busiest_host;
  measured.codec_in_compute = host.on_cores * static_cast<double>(host.nodes) / static_cast<double>(cores);
}

Result<model::CodecCost> codec_cost(const std::string& name, const MeasuredJob& measured, std::size_t nodes) {
  if (name == "none") return model::CodecCost{};
  const auto codec = compress::make_codec(name);
  if (!codec) return tl::unexpected(codec.error());
  model::CodecCost cost = cost_here(**codec, measured, nodes);
  if (const auto* const traced = traced_cost(measured, name); traced != nullptr && nodes == measured.node_count) {
    cost.encode_us_per_byte = traced->encode_us_per_byte;
    cost.decode_us_per_byte = traced->decode_us_per_byte;
    cost.wire_share = traced->wire_share;
    // The measured rates of links whose gradients had one codec are those of its bytes.
    if (measured.profile.codecs.size() == 2) cost.link_shares.clear();
  } else {
    const double times = slowness(measured);
    cost.encode_us_per_byte *= times;
    cost.decode_us_per_byte *= times;
  }
  cost.name = name;
  return cost;
}

void price_plan_codecs(MeasuredJob& measured) {
  auto options = measured.options;
  const auto plans = [](const PolicyTraits& traits) { return traits.delays_updates && !traits.simulator_only; };
  const PolicyTraits* const traced = find_policy(policy_of(options));
  if (traced == nullptr || !plans(*traced)) options["policy"] = std::ranges::find_if(kPolicyTraits, plans)->name;
  const auto config = config_of(options);
  const auto ladder = config ? compress::ladder_of(compress::compression_of(*config)) : std::nullopt;
  if (!ladder) return;
  measured.plan_codecs = model::exact_only();
  for (const std::string& name : *ladder)
    if (auto cost = codec_cost(name, measured, measured.node_count); cost)
      measured.plan_codecs.push_back(*std::move(cost));
}

}  // namespace deft::replay
