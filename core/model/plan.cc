#include "core/model/plan.h"

#include <algorithm>
#include <tuple>

#include "core/model/calendar.h"

namespace deft::model {
namespace {

// FNV-1a over the values' bytes, lowest first, whatever the machine.
class Hasher {
 public:
  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) state_ = (state_ ^ (value >> (8 * i) & 0xff)) * 0x100000001b3;
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
  if (part.generation >= plan.generations.size())
    return at(place + ".generation",
              std::to_string(part.generation) + ", and the cycle has " + std::to_string(plan.generations.size()));
  if (part.bytes == 0) return at(place + ".bytes", "a part of zero bytes");
  const std::uint64_t bytes = bucket_bytes[part.bucket];
  if (part.offset >= bytes || part.bytes > bytes - part.offset)
    return at(place + ".bytes", "the part ends behind its bucket of " + std::to_string(bytes) + " bytes");
  return {};
}

struct Range {
  std::size_t generation;
  BucketIndex bucket;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::size_t link;
  std::size_t part;
};

// Every byte of every bucket in every generation once; `ranges` sorted by generation, bucket and offset.
Result<void> check_coverage(std::span<const Range> ranges, std::span<const std::uint64_t> bucket_bytes,
                            std::size_t generations) {
  auto range = ranges.begin();
  for (std::size_t g = 0; g < generations; ++g)
    for (BucketIndex b = 0; b < bucket_bytes.size(); ++b) {
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

}  // namespace

double Plan::updates_per_step() const {
  return static_cast<double>(generations.size()) / static_cast<double>(period_steps);
}

std::uint32_t Plan::max_staleness() const {
  std::uint32_t most = 0;
  for (const auto& generation : generations) most = std::max(most, generation.staleness());
  return most;
}

std::uint32_t Plan::max_merged() const {
  std::uint32_t most = 0;
  for (const auto& generation : generations) most = std::max(most, generation.merged());
  return most;
}

std::size_t Plan::parts() const {
  std::size_t count = 0;
  for (const auto& link : links) count += link.size();
  return count;
}

std::uint64_t Plan::hash() const {
  Hasher hasher;
  hasher.add(period_steps);
  hasher.add(generations.size());
  for (const auto& generation : generations) {
    hasher.add(generation.first_step);
    hasher.add(generation.last_step);
    hasher.add(generation.apply_step);
  }
  hasher.add(links.size());
  for (const auto& link : links) {
    hasher.add(link.size());
    for (const auto& part : link) {
      hasher.add(part.bucket);
      hasher.add(part.generation);
      hasher.add(part.offset);
      hasher.add(part.bytes);
    }
  }
  return hasher.value();
}

Result<void> check_plan(const Plan& plan, std::span<const std::uint64_t> bucket_bytes, std::size_t links) {
  if (auto ok = check_cycle(cycle_of(plan)); !ok) return ok;
  if (plan.links.size() != links)
    return at("links", "the plan is for " + std::to_string(plan.links.size()) + " links, and there are " +
                           std::to_string(links));
  std::vector<Range> ranges;
  ranges.reserve(plan.parts());
  for (std::size_t l = 0; l < plan.links.size(); ++l)
    for (std::size_t i = 0; i < plan.links[l].size(); ++i) {
      const auto& part = plan.links[l][i];
      if (auto ok = check_part(part, plan, bucket_bytes, of("links", l) + "." + of("parts", i)); !ok) return ok;
      ranges.push_back({part.generation, part.bucket, part.offset, part.bytes, l, i});
    }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::tie(a.generation, a.bucket, a.offset) < std::tie(b.generation, b.bucket, b.offset);
  });
  return check_coverage(ranges, bucket_bytes, plan.generations.size());
}

}  // namespace deft::model
