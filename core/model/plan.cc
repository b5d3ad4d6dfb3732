#include "core/model/plan.h"

#include <algorithm>
#include <tuple>

#include "core/model/update_cycle.h"

namespace deft::model {
namespace {

// FNV-1a over the values' bytes, lowest first, whatever the machine.
class Hasher {
 public:
  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) state_ = (state_ ^ (value >> (8 * i) & 0xff)) * 0x100000001b3;
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
  std::uint64_t state_ = 0xcbf29ce484222325;
};

tl::unexpected<Error> at(const std::string& place, const std::string& what) {
  return fail(ErrorKind::kInvalid, "plan." + place + ": " + what);
}

std::string of(const char* list, std::size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

Result<void> check_part(const PlanPart& part, const Plan& plan, std::span<const std::uint64_t> bucket_bytes,
                        const std::string& place) {
  if (part.bucket >= bucket_bytes.size())
    return at(place + ".bucket",
              std::to_string(part.bucket) + ", and there are " + std::to_string(bucket_bytes.size()) + " buckets");
  const std::size_t generations = plan.generations_of(part.bucket).size();
  if (part.generation >= generations)
    return at(place + ".generation",
              std::to_string(part.generation) + ", and the cycle has " + std::to_string(generations));
  if (part.cycles_back > kMaxCyclesBack)
    return at(place + ".cycles_back", std::to_string(part.cycles_back) + " is absurdly large");
  if (part.bytes == 0) return at(place + ".bytes", "a part of zero bytes");
  const std::uint64_t bytes = bucket_bytes[part.bucket];
  if (part.offset >= bytes || part.bytes > bytes - part.offset)
    return at(place + ".bytes", "the part ends behind its bucket of " + std::to_string(bytes) + " bytes");
  return {};
}

struct Range {
  BucketIndex bucket;
  std::size_t generation;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::size_t link;
  std::size_t part;
};

// Every byte of every bucket in every generation once; `ranges` sorted by bucket, generation and offset.
Result<void> check_coverage(std::span<const Range> ranges, std::span<const std::uint64_t> bucket_bytes,
                            const Plan& plan) {
  auto range = ranges.begin();
  for (BucketIndex b = 0; b < bucket_bytes.size(); ++b)
    for (std::size_t g = 0; g < plan.generations_of(b).size(); ++g) {
      std::uint64_t covered = 0;
      for (; range != ranges.end() && range->generation == g && range->bucket == b; ++range) {
        if (range->offset != covered)
          return at(of("links", range->link) + "." + of("parts", range->part) + ".offset",
                    std::to_string(range->offset) + ", the parts of bucket " + std::to_string(b) +
                        " overlap or leave a gap at byte " + std::to_string(covered));
        covered += range->bytes;
      }
      if (covered != bucket_bytes[b])
        return at("links", "generation " + std::to_string(g) + " does not send all of bucket " + std::to_string(b));
    }
  return {};
}

Result<void> check_cycles(const Plan& plan, std::size_t buckets) {
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

std::map<BucketIndex, double> Plan::bucket_bytes() const {
  std::map<BucketIndex, double> bytes;
  for (const auto& link : links)
    for (const auto& part : link) bytes[part.bucket] += static_cast<double>(part.bytes);
  for (auto& [bucket, sum] : bytes) sum /= static_cast<double>(generations_of(bucket).size());
  return bytes;
}

double Plan::updates_per_step() const {
  const auto rate = [this](const auto& of) { return static_cast<double>(of.size()) / period_steps; };
  if (own_generations.empty()) return rate(generations);
  double sum = 0, all = 0;
  for (const auto& [bucket, bytes] : bucket_bytes()) {
    sum += bytes * rate(generations_of(bucket));
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
  double late = 0, all = 0;
  for (const auto& [bucket, bytes] : bucket_bytes()) {
    all += bytes;
    if (!std::ranges::all_of(generations_of(bucket), is_fresh)) late += bytes;
  }
  return all > 0 ? late / all : 0;
}

std::size_t Plan::parts() const {
  std::size_t count = 0;
  for (const auto& link : links) count += link.size();
  return count;
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
  hasher.add(links.size());
  for (const auto& link : links) {
    hasher.add(link.size());
    for (const auto& part : link) {
      hasher.add(part.bucket);
      hasher.add(part.generation);
      hasher.add(part.offset);
      hasher.add(part.bytes);
      hasher.add(part.cycles_back);
    }
  }
  return hasher.value();
}

Result<void> check_plan(const Plan& plan, std::span<const std::uint64_t> bucket_bytes, std::size_t links) {
  if (auto ok = check_cycles(plan, bucket_bytes.size()); !ok) return ok;
  if (plan.links.size() != links)
    return at("links", "the plan is for " + std::to_string(plan.links.size()) + " links, and there are " +
                           std::to_string(links));
  std::vector<Range> ranges;
  ranges.reserve(plan.parts());
  for (std::size_t l = 0; l < plan.links.size(); ++l)
    for (std::size_t i = 0; i < plan.links[l].size(); ++i) {
      const auto& part = plan.links[l][i];
      if (auto ok = check_part(part, plan, bucket_bytes, of("links", l) + "." + of("parts", i)); !ok) return ok;
      ranges.push_back({part.bucket, part.generation, part.offset, part.bytes, l, i});
    }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.bucket, a.generation, a.offset) < std::tie(b.bucket, b.generation, b.offset);
  });
  return check_coverage(ranges, bucket_bytes, plan);
}

}  // namespace deft::model
