#include "core/sched/usbyte_model.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <set>

#include "core/model/buckets.h"
#include "core/sched/size_limit.h"

namespace deft::sched {
namespace {

constexpr std::size_t kMaxTrials = 400;      // raisings that are tried, from the output side on
constexpr std::size_t kMaxEffort = 400'000;  // the same, times layers: a leader plans while its job trains

// Forward of the next step, each layer once it has arrived.
double forward_end_us(const UsByteModel& model, const std::vector<double>& arrived_us) {
  double end_us = model.layers.empty() ? 0 : model.layers.front().ready_us;
  for (std::size_t i = 0; i < model.layers.size(); ++i)
    end_us = std::max(end_us, arrived_us[i]) + model.layers[i].forward_us;
  return end_us;
}

// Hands out the layers as they become ready: the last one first.
class Arrivals {
 public:
  explicit Arrivals(const UsByteModel& model) : model_(model), left_(model.layers.size()) {}
  [[nodiscard]] bool any() const { return left_ > 0; }
  [[nodiscard]] double next_us() const { return model_.layers[left_ - 1].ready_us; }
  std::size_t take() { return --left_; }

 private:
  const UsByteModel& model_;
  std::size_t left_;
};

}  // namespace

UsByteModel::Result UsByteModel::blocks(const std::vector<std::uint32_t>& ranks) const {
  const double never = std::numeric_limits<double>::infinity();
  Result result{0, std::vector<double>(layers.size(), never)};
  std::vector<double> arrived_us(layers.size(), 0);
  std::vector<std::uint64_t> rest;
  for (const auto& layer : layers) rest.push_back(layer.bytes);
  Arrivals arrivals(*this);
  std::set<std::tuple<std::uint32_t, std::size_t, std::size_t>> ready;  // rank, order of arrival, layer
  double now_us = 0;
  while (arrivals.any() || !ready.empty()) {
    if (ready.empty()) now_us = std::max(now_us, arrivals.next_us());
    while (arrivals.any() && arrivals.next_us() <= now_us) {
      const std::size_t layer = arrivals.take();
      ready.insert({ranks[layer], layers.size() - layer, layer});
    }
    const std::size_t layer = std::get<2>(*ready.begin());
    std::uint64_t bytes = rest[layer];
    if (arrivals.any()) {
      const double room = (arrivals.next_us() - now_us - latency_us) * bytes_per_us;
      const double units = std::max(1.0, std::ceil(std::min(1e15, room) / static_cast<double>(unit_bytes)));
      bytes = std::min(bytes, static_cast<std::uint64_t>(units) * unit_bytes);
    }
    result.first_sent_us[layer] = std::min(result.first_sent_us[layer], now_us);
    now_us += cost_us(bytes);
    rest[layer] -= bytes;
    if (rest[layer] > 0) continue;
    arrived_us[layer] = now_us;
    ready.erase(ready.begin());
  }
  result.step_us = forward_end_us(*this, arrived_us);
  return result;
}

double UsByteModel::parts_us() const {
  std::vector<double> arrived_us(layers.size(), 0);
  std::vector<std::uint64_t> rest;
  for (const auto& layer : layers) rest.push_back(layer.bytes);
  Arrivals arrivals(*this);
  std::set<std::size_t> ready;
  struct InFlight {
    double end_us;
    std::uint64_t bytes;
  };
  std::deque<InFlight> flights;
  std::uint64_t in_flight = 0;
  double now_us = 0;
  while (arrivals.any() || !ready.empty()) {
    while (arrivals.any() && arrivals.next_us() <= now_us) ready.insert(arrivals.take());
    while (!flights.empty() && flights.front().end_us <= now_us)
      in_flight -= flights.front().bytes, flights.pop_front();
    bool launched = false;
    if (!ready.empty()) {
      const std::size_t layer = *ready.begin();
      const std::uint64_t bytes = std::min(rest[layer], model::even_part_bytes(layers[layer].bytes, part_bytes));
      if (in_flight == 0 || in_flight + bytes <= credit_bytes) {
        const double begin_us = flights.empty() ? now_us : flights.back().end_us;
        flights.push_back({begin_us + cost_us(bytes), bytes});
        in_flight += bytes;
        rest[layer] -= bytes;
        if (rest[layer] == 0) arrived_us[layer] = flights.back().end_us, ready.erase(ready.begin());
        launched = true;
      }
    }
    if (launched) continue;
    double next_us = std::numeric_limits<double>::infinity();
    if (arrivals.any()) next_us = arrivals.next_us();
    if (!flights.empty()) next_us = std::min(next_us, flights.front().end_us);
    now_us = next_us;
  }
  return forward_end_us(*this, arrived_us);
}

UsByteModel usbyte_model(const model::Profile& profile, std::uint64_t partition_bytes, std::uint64_t credit_bytes) {
  UsByteModel model;
  const auto ready_us = model::ready_times(profile);
  for (std::size_t layer = 0; layer < profile.buckets.size(); ++layer) {
    const auto& bucket = profile.buckets[layer];
    model.layers.push_back({ready_us[ready_us.size() - 1 - layer], bucket.forward_us, bucket.bytes});
  }
  model.latency_us = std::numeric_limits<double>::infinity();
  model.bytes_per_us = 0;
  for (std::size_t l = 0; l < profile.links.size(); ++l) {
    const model::LinkModel link = profile.link_model(l);
    model.latency_us = std::min(model.latency_us, link.latency_us);
    model.bytes_per_us += link.bytes_per_us;
  }
  model.unit_bytes = partition_bytes;
  const CreditRules parts = credit_rules(partition_bytes, credit_bytes);
  model.part_bytes = parts.part.on_link(model.bytes_per_us);
  model.credit_bytes = parts.credit.on_link(model.bytes_per_us);
  return model;
}

std::vector<std::uint32_t> raised_ranks(const UsByteModel& model) {
  std::vector<std::uint32_t> ranks(model.layers.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  auto best = model.blocks(ranks);
  const std::size_t most = std::min(kMaxTrials, kMaxEffort / std::max<std::size_t>(1, ranks.size()));
  std::size_t trials = 0;
  for (std::size_t layer = ranks.size() - 1; layer >= 1 && trials < most; --layer) {
    const double whole_us = best.first_sent_us[layer] + model.cost_us(model.layers[layer].bytes);
    // The layer that is the newest at that time: it would otherwise overtake.
    std::size_t newest = layer;
    while (newest > 0 && model.layers[newest - 1].ready_us <= whole_us) --newest;
    if (newest == layer || ranks[newest] >= ranks[layer]) continue;
    auto trial = ranks;
    trial[layer] = ranks[newest];
    const auto result = model.blocks(trial);
    ++trials;
    if (result.step_us < best.step_us) best = result, ranks = std::move(trial);
  }
  return ranks;
}

}  // namespace deft::sched
