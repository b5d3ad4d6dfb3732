// What every timetable must be: every byte of every bucket in every generation sent exactly once, in whole parts, on links that
// exist, for a plan that check_cycles accepts.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/plan/timetable.h"

namespace deft::plan {

// Empty: nothing is wrong.
inline std::string fault_of(const Timetable& table, const std::vector<std::uint64_t>& bucket_bytes, std::size_t links) {
  if (auto ok = model::check_cycles(table.plan.cycles, bucket_bytes.size()); !ok) return ok.error().message();
  if (table.plan.bucket_bytes != bucket_bytes) return "the plan is for other buckets";
  if (table.links.size() != links) return "the timetable is for " + std::to_string(table.links.size()) + " links";
  std::map<std::pair<model::BucketIndex, std::uint32_t>, std::map<std::uint64_t, std::uint64_t>> sent;
  for (const auto& link : table.links)
    for (const TimetablePart& part : link) {
      if (part.bucket >= bucket_bytes.size()) return "a part of a bucket that does not exist";
      if (part.bytes == 0) return "a part of zero bytes";
      if (!sent[{part.bucket, part.generation}].emplace(part.offset, part.bytes).second) return "a part is sent twice";
    }
  std::size_t generations = 0;
  for (model::BucketIndex b = 0; b < bucket_bytes.size(); ++b)
    for (std::uint32_t g = 0; g < table.plan.cycles.of(b).generations.size(); ++g, ++generations) {
      std::uint64_t covered = 0;
      for (const auto& [offset, bytes] : sent[{b, g}]) {
        if (offset != covered) return "bucket " + std::to_string(b) + " has a gap at " + std::to_string(covered);
        covered += bytes;
      }
      if (covered != bucket_bytes[b]) return "not all of bucket " + std::to_string(b) + " is sent";
    }
  return sent.size() == generations ? "" : "parts of generations that do not exist";
}

}  // namespace deft::plan
