// The costs and savings of a codec, with which the planner, the schedulers and the simulator reckon. core/compress has the codecs.
//
//   const CodecCost& codec = profile.codecs[launch.codec];
//   codec.wire_bytes(coded_share(bucket), bytes, link)      // the bytes of a part on the wire
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
  double wire_share = 1;          // bytes of an encoding over the bytes of its gradients as float32
  double encode_us_per_byte = 0;  // of gradients as float32
  double decode_us_per_byte = 0;
  double error = 0;  // |gradient - decoded|^2 / |gradient|^2 of one encoding
  // [link]: the time on this link over the time of the gradients without a codec, if kinds of links differ. With three nodes or more,
  // parameter servers answer with more than they get. Empty: wire_share on all links.
  std::vector<double> link_shares = {};

  [[nodiscard]] double share_on(LinkIndex link) const {
    return link < link_shares.size() ? link_shares[link] : wire_share;
  }
  // Only a share of a bucket's bytes may be encoded; the rest travels as it is.
  [[nodiscard]] double bytes_share(const CodedShare& coded, LinkIndex link) const {
    return 1 - coded.share + coded.share * coded.widening * share_on(link);
  }
  [[nodiscard]] std::uint64_t wire_bytes(const CodedShare& coded, std::uint64_t bytes, LinkIndex link) const {
    return std::max<std::uint64_t>(
        1, static_cast<std::uint64_t>(std::llround(bytes_share(coded, link) * static_cast<double>(bytes))));
  }
  // Encoding and decoding take the link's thread so long for a byte of the bucket, or of float32.
  [[nodiscard]] double thread_us_per_byte(const CodedShare& coded = {}) const {
    return coded.share * coded.widening * (encode_us_per_byte + decode_us_per_byte);
  }
  bool operator==(const CodecCost&) const = default;
};

// The list of a job without codecs.
inline std::vector<CodecCost> exact_only() { return {CodecCost{}}; }

}  // namespace deft::model
