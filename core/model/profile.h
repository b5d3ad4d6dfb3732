// A profile describes a model and its network to the planner and the simulator: the times of each bucket, and the cost of each
// link.
//
//   auto profile = read_profile("vgg19.json");            // or parse_profile(text); every value is checked
//   if (!profile) return tl::unexpected(profile.error());  // "buckets[3].forward_us: -2 is negative"
//   profile->comm_us(3, 1, 4096);                          // bucket 3's first 4096 bytes on link 1
//
// The JSON form is that of the message deft.Profile (proto/profile.proto): snake_case or camelCase names, 64-bit
// numbers as numbers or as strings. Buckets stand in forward order: forward needs the first bucket first, and backward
// makes it ready last.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/model/codec_cost.h"

namespace deft::model {

inline constexpr std::size_t kMaxProfileBuckets = 100'000;
inline constexpr std::size_t kMaxProfileLinks = 64;
inline constexpr std::size_t kMaxProfileText = std::size_t{64} << 20;
inline constexpr double kMaxProfileUs = 1e12;  // eleven days: a time above it is a mistake
inline constexpr double kMaxBytesPerUs = 1e9;

struct ProfileBucket {
  std::string name;
  std::uint64_t bytes = 0;
  double forward_us = 0;
  double backward_us = 0;
  std::optional<double>
      comm_us;  // the time of the whole bucket on the reference link; empty: the links' models give it
  std::optional<std::uint64_t> coded_bytes = {};  // that a codec may encode; empty: all
  std::uint64_t element_bytes = 4;                // of gradients that a codec may encode: 2 for float16 and bfloat16
  bool joined = false;                            // as model::Bucket's; the JSON form does not tell

  [[nodiscard]] CodedShare coded_share() const {
    return model::coded_share(coded_bytes.value_or(bytes), bytes, element_bytes == 2);
  }
};

struct ProfileLink {
  std::string name;
  double latency_us = 0;                // each part pays it once
  std::optional<double> relative_time;  // how many times slower than the reference link; or else:
  std::optional<double> bytes_per_us;   // the throughput of an all-reduce, without the latency
  double burst_bytes = 0;  // carried at once after a pause (core/sim/token_bucket.h). The JSON form does not tell
};

// The cost of the parts of a bucket on a link. A part takes fixed_us + bytes * us_per_byte.
struct PartCost {
  double fixed_us = 0;
  double us_per_byte = 0;

  [[nodiscard]] double us(std::uint64_t bytes) const { return fixed_us + static_cast<double>(bytes) * us_per_byte; }
};

struct Profile {
  std::string model;
  std::string source;
  std::vector<ProfileBucket> buckets;  // in forward order
  std::vector<ProfileLink> links;
  std::vector<CodecCost> codecs = exact_only();  // that a plan may choose among; the first is exact
  // The codec of all launches, where no plan chooses one. Links are then measured by the bytes of gradients, so its wire_share is 1. The
  // JSON form does not tell it.
  std::optional<CodecCost> fixed_codec = {};

  // The cost of the parts of `bucket` on `link`. If comm_us and relative_time are given, a whole bucket costs exactly their
  // product. A part then pays the link's latency (or the whole time if that is less) and its share of the rest.
  [[nodiscard]] PartCost cost(std::size_t bucket, std::size_t link) const;
  // The same if `codec` encodes the bucket. A node encodes the next part and decodes the last one while a part is on the wire,
  // on the link's thread. So a byte costs as much as the slower of wire and thread. The time that the first part's encoding takes before
  // the wire has anything to do is left out: codecs are much faster than links that need them.
  [[nodiscard]] PartCost cost(std::size_t bucket, std::size_t link, CodecIndex codec) const;
  [[nodiscard]] double comm_us(std::size_t bucket, std::size_t link, std::uint64_t bytes) const {
    return cost(bucket, link).us(bytes);
  }
  [[nodiscard]] double comm_us(std::size_t bucket, std::size_t link) const {
    return comm_us(bucket, link, buckets[bucket].bytes);
  }
  // The sums over all buckets.
  [[nodiscard]] double forward_us() const;
  [[nodiscard]] double backward_us() const;
  [[nodiscard]] double compute_us() const { return forward_us() + backward_us(); }
  [[nodiscard]] std::uint64_t bytes() const;

  // The cost of `link`, averaged over all buckets.
  [[nodiscard]] LinkModel link_model(std::size_t link) const;
};

// Checks what parse_profile checks, for a profile that was made in another way.
Result<void> check_profile(const Profile& profile);

// Reads the JSON form. A field that is unknown, repeated or missing and an impossible value are errors (kInvalid) that name
// the place.
Result<Profile> parse_profile(std::string_view json);
Result<Profile> read_profile(const std::string& path);
std::string to_json(const Profile& profile);

// The same profile with these of its links only.
Profile keep_links(const Profile& profile, std::span<const LinkIndex> links);
// The same with the named links only, in the order of `names`; an unknown or repeated name is an error.
Result<Profile> with_links(const Profile& profile, const std::vector<std::string>& names);

// Backward produces the profile's last bucket first. The next two functions have its order.

// The profile's number of the i-th bucket that backward produces.
inline std::size_t produced(const Profile& profile, std::size_t i) { return profile.buckets.size() - 1 - i; }

// The time in microseconds from the beginning of backward until each bucket is ready, in the order of production.
std::vector<double> ready_times(const Profile& profile);

// The link that would carry all buckets in the shortest time. The profile has a link.
std::size_t fastest_link(const Profile& profile);

}  // namespace deft::model
