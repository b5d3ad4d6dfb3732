#include "core/model/plan.h"

#include <algorithm>
#include <array>

#include "core/base/text.h"
#include "core/model/update_cycle.h"

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

tl::unexpected<Error> at(const std::string& place, const std::string& what) {
  return fail(ErrorKind::kInvalid, "plan." + place + ": " + what);
}

template <typename Value>
std::uint32_t most_of(const Plan& plan, Value value) {
  std::uint32_t most = 0;
  for (const auto& generation : plan.generations) most = std::max(most, value(generation));
  for (const auto& [bucket, generations] : plan.own_generations)
    for (const auto& generation : generations) most = std::max(most, value(generation));
  return most;
}

bool is_fresh(const PlanGeneration& generation) { return generation.merged() == 1 && generation.staleness() == 0; }

}  // namespace

double Plan::updates_per_step() const {
  const auto rate = [this](const auto& of) { return static_cast<double>(of.size()) / period_steps; };
  if (own_generations.empty()) return rate(generations);
  double sum = 0, all = 0;
  for (BucketIndex b = 0; b < bucket_bytes.size(); ++b) {
    const auto bytes = static_cast<double>(bucket_bytes[b]);
    sum += bytes * rate(generations_of(b));
    all += bytes;
  }
  return all > 0 ? sum / all : rate(generations);
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
    if (!std::ranges::all_of(generations_of(b), is_fresh)) stale += bytes;
  }
  return all > 0 ? stale / all : 0;
}

std::uint64_t Plan::hash() const {
  Hasher hasher;
  hasher.add(period_steps);
  hasher.add(generations);
  hasher.add(own_generations.size());
  for (const auto& [bucket, own] : own_generations) {
    hasher.add(bucket);
    hasher.add(own);
  }
  return hasher.value();
}

Result<void> check_plan(const Plan& plan, std::size_t buckets) {
  if (auto ok = check_cycle({plan.period_steps, plan.generations}); !ok) return ok;
  for (const auto& [bucket, generations] : plan.own_generations) {
    if (bucket >= buckets)
      return at("own_generations",
                "of bucket " + std::to_string(bucket) + ", and there are " + std::to_string(buckets) + " buckets");
    auto ok = check_cycle({plan.period_steps, generations});
    if (!ok) return tl::unexpected(ok.error().in("bucket " + std::to_string(bucket)));
  }
  return {};
}

}  // namespace deft::model
