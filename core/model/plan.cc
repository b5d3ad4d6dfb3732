#include "core/model/plan.h"

#include <algorithm>
#include <array>

#include "core/base/text.h"

namespace deft::model {
namespace {

// Over the values' bytes, lowest first, whatever the machine.
class Hasher {
 public:
  void add(std::uint64_t value) {
    std::array<char, 8> bytes{};
    for (char& byte : bytes) byte = static_cast<char>(value & 0xff), value >>= 8;
    state_ = stable_hash({bytes.data(), bytes.size()}, state_);
  }
  void add(const std::vector<PlanGeneration>& generations) {
    add(generations.size());
    for (const auto& generation : generations) {
      add(generation.first_step);
      add(generation.last_step);
      add(generation.apply_step);
    }
  }
  [[nodiscard]] std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = stable_hash({});
};

template <typename Value>
std::uint32_t most_of(const Plan& plan, Value value) {
  std::uint32_t most = 0;
  for (const auto& generation : plan.cycles.usual.generations) most = std::max(most, value(generation));
  for (const auto& [bucket, cycle] : plan.cycles.own)
    for (const auto& generation : cycle.generations) most = std::max(most, value(generation));
  return most;
}

bool is_fresh(const PlanGeneration& generation) { return generation.merged() == 1 && generation.staleness() == 0; }

}  // namespace

double Plan::updates_per_step() const {
  const auto rate = [](const UpdateCycle& cycle) {
    return static_cast<double>(cycle.generations.size()) / cycle.period_steps;
  };
  if (cycles.own.empty()) return rate(cycles.usual);
  double sum = 0, all = 0;
  for (BucketIndex b = 0; b < bucket_bytes.size(); ++b) {
    const auto bytes = static_cast<double>(bucket_bytes[b]);
    sum += bytes * rate(cycles.of(b));
    all += bytes;
  }
  return all > 0 ? sum / all : rate(cycles.usual);
}

std::uint32_t Plan::max_staleness() const {
  return most_of(*this, [](const PlanGeneration& generation) { return generation.staleness(); });
}

std::uint32_t Plan::max_merged() const {
  return most_of(*this, [](const PlanGeneration& generation) { return generation.merged(); });
}

double Plan::stale_share() const {
  double stale = 0, all = 0;
  for (BucketIndex b = 0; b < bucket_bytes.size(); ++b) {
    const auto bytes = static_cast<double>(bucket_bytes[b]);
    all += bytes;
    if (!std::ranges::all_of(cycles.of(b).generations, is_fresh)) stale += bytes;
  }
  return all > 0 ? stale / all : 0;
}

std::uint64_t Plan::hash() const {
  Hasher hasher;
  hasher.add(cycles.period_steps());
  hasher.add(cycles.usual.generations);
  hasher.add(cycles.own.size());
  for (const auto& [bucket, own] : cycles.own) {
    hasher.add(bucket);
    hasher.add(own.generations);
  }
  return hasher.value();
}

}  // namespace deft::model
