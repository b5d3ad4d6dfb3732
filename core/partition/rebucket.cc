#include "core/partition/rebucket.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/model/buckets.h"

namespace deft::partition {
namespace {

using model::Profile;
using model::ProfileBucket;
using Cuts = std::vector<std::uint64_t>;

// What each transfer on the reference link pays whatever its size.
double reference_latency_us(const Profile& profile) {
  for (const auto& link : profile.links)
    if (link.relative_time && *link.relative_time == 1) return link.latency_us;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& link : profile.links) least = std::min(least, link.latency_us);
  return profile.links.empty() ? 0 : least;
}

Cuts cut_uniform(std::uint64_t total, std::uint64_t limit) {
  const std::uint64_t size = model::even_part_bytes(total, limit);
  Cuts cuts;
  for (std::uint64_t at = 0; at < total; at += size) cuts.push_back(at);
  return cuts;
}

// Buckets of the profile stand for tensors here, as its finest grain.
Cuts cut_ddp(const Profile& profile) {
  Cuts cuts{0};
  std::uint64_t at = 0;
  for (auto it = profile.buckets.rbegin(); it != profile.buckets.rend(); ++it) {
    if (at - cuts.back() >= (cuts.size() == 1 ? model::kDdpFirstBucketBytes : model::kDdpBucketBytes))
      cuts.push_back(at);
    at += it->bytes;
  }
  return cuts;
}

// Gradients of one type lie together in the arena, and no bucket holds two types.
Cuts with_borders(const Profile& profile, Cuts cuts) {
  std::uint64_t at = 0;
  for (std::size_t i = profile.buckets.size(); i-- > 1;) {
    at += profile.buckets[i].bytes;
    if (profile.buckets[i].element_bytes != profile.buckets[i - 1].element_bytes) cuts.push_back(at);
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// What codecs may encode of the first `bytes` of a bucket: they lie evenly in it.
std::uint64_t coded_until(const ProfileBucket& bucket, std::uint64_t bytes) {
  if (!bucket.coded_bytes) return bytes;
  const long double product = static_cast<long double>(*bucket.coded_bytes) * static_cast<long double>(bytes);
  return static_cast<std::uint64_t>(std::llround(product / static_cast<long double>(bucket.bytes)));
}

// Adds the slice [begin, begin + bytes) of `from`.
void add_slice(const ProfileBucket& from, double latency_us, std::uint64_t begin, std::uint64_t bytes,
               ProfileBucket& to) {
  const double share = static_cast<double>(bytes) / static_cast<double>(from.bytes);
  if (from.coded_bytes || to.coded_bytes) {
    const std::uint64_t coded = coded_until(from, begin + bytes) - coded_until(from, begin);
    to.coded_bytes = to.coded_bytes.value_or(to.bytes) + std::min(coded, bytes);
  }
  to.element_bytes = from.element_bytes;
  to.bytes += bytes;
  to.forward_us += from.forward_us * share;
  to.backward_us += from.backward_us * share;
  if (from.comm_us) {
    const double variable_us = std::max(0.0, *from.comm_us - latency_us) * share;
    to.comm_us = to.comm_us.value_or(std::min(latency_us, *from.comm_us)) + variable_us;
  }
}

std::string slice_name(const std::vector<std::string>& sources, std::size_t piece, bool whole) {
  if (sources.size() > 1) return sources.back() + ".." + sources.front();
  return whole ? sources.front() : sources.front() + "#" + std::to_string(piece);
}

}  // namespace

Profile with_cuts(const Profile& profile, const Cuts& wanted) {
  const Cuts cuts = with_borders(profile, wanted);
  Profile out = profile;
  out.buckets.clear();
  const double latency_us = reference_latency_us(profile);
  std::size_t source = profile.buckets.size() - 1;  // the arena begins with the last bucket
  std::uint64_t used = 0;                           // bytes of the source that are taken
  std::size_t piece = 0;
  const std::uint64_t total = profile.bytes();
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    std::uint64_t need = (i + 1 < cuts.size() ? cuts[i + 1] : total) - cuts[i];
    ProfileBucket bucket;
    std::vector<std::string> sources;
    bool whole = true;
    while (need > 0) {
      const ProfileBucket& from = profile.buckets[source];
      const std::uint64_t take = std::min(need, from.bytes - used);
      add_slice(from, latency_us, used, take, bucket);
      sources.push_back(from.name);
      whole = take == from.bytes;
      need -= take;
      used += take;
      if (!whole) ++piece;
      if (used == from.bytes && need > 0) --source, used = 0, piece = 0;
    }
    bucket.name = slice_name(sources, piece, whole);
    if (used == profile.buckets[source].bytes && source > 0) --source, used = 0, piece = 0;
    out.buckets.push_back(std::move(bucket));
  }
  std::reverse(out.buckets.begin(), out.buckets.end());
  return out;
}

Result<Profile> rebucket(const Profile& profile, std::string_view bucketing) {
  if (bucketing.empty() || bucketing == "profile") return profile;
  if (bucketing == "ddp") return with_cuts(profile, cut_ddp(profile));
  const bool needs_times = bucketing == "mgwfbp" || bucketing == "usbyte" || bucketing == "deft";
  if (needs_times && profile.links.empty())
    return fail(ErrorKind::kInvalid, "bucketing '" + std::string(bucketing) + "' needs a profile with a link",
                "add a link to the profile, or use uniform:BYTES");
  if (bucketing == "mgwfbp") return with_cuts(profile, mgwfbp_cuts(profile));
  if (bucketing == "usbyte") return with_cuts(profile, usbyte_cuts(profile, kUsByteUnitBytes));
  if (bucketing == "deft") return with_cuts(profile, deft_cuts(profile));
  if (bucketing.starts_with("uniform")) {
    const auto limit = uniform_bytes(bucketing);
    if (!limit) return tl::unexpected(limit.error());
    const std::uint64_t total = profile.bytes();
    if (total / *limit > model::kMaxProfileBuckets)
      return fail(ErrorKind::kInvalid, "bucketing '" + std::string(bucketing) + "' gives more than 100000 buckets",
                  "use larger buckets");
    return with_cuts(profile, cut_uniform(total, *limit));
  }
  return fail(ErrorKind::kInvalid, "unknown bucketing '" + std::string(bucketing) + "'",
              "one of profile uniform:BYTES ddp mgwfbp usbyte deft");
}

}  // namespace deft::partition
