// What a codec costs and saves: the planner, the schedulers and the simulator reckon with it. core/compress has the codecs.
//
//   const CodecCost& codec = profile.codecs[launch.codec];
//   codec.wire_bytes(coded_share, bytes, link)      // what a part takes on the wire
//
// A job has a list of codecs. The first of them is exact: gradients travel as they are.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/model/buckets.h"

namespace deft::model {

using CodecIndex = std::uint8_t;  // in the job's list; 0: exact
inline constexpr std::size_t kMaxCodecs = 16;
// In place of an index: all tensors travel as they are, also those with codecs of their own, and take residuals along.
inline constexpr CodecIndex kWithResiduals = 255;

struct CodecCost {
  std::string name = "none";
  double wire_share = 1;          // bytes of an encoding over those of its gradients
  double encode_us_per_byte = 0;  // of gradients
  double decode_us_per_byte = 0;
  double error = 0;  // |gradient - decoded|^2 / |gradient|^2 of one encoding
  // [link]: what the link takes of the time of the gradients, where kinds of links differ: with three nodes or more, parameter servers
  // answer with more than they get. Empty: wire_share on all links.
  std::vector<double> link_shares = {};

  [[nodiscard]] double share_on(LinkIndex link) const {
    return link < link_shares.size() ? link_shares[link] : wire_share;
  }
  // Only `coded_share` of a bucket's bytes may be encoded; the rest travels as it is.
  [[nodiscard]] double bytes_share(double coded_share, LinkIndex link) const {
    return 1 - coded_share + coded_share * share_on(link);
  }
  [[nodiscard]] std::uint64_t wire_bytes(double coded_share, std::uint64_t bytes, LinkIndex link) const {
    return std::max<std::uint64_t>(
        1, static_cast<std::uint64_t>(std::llround(bytes_share(coded_share, link) * static_cast<double>(bytes))));
  }
  bool operator==(const CodecCost&) const = default;
};

// The list of a job without codecs.
inline std::vector<CodecCost> exact_only() { return {CodecCost{}}; }

}  // namespace deft::model
