#include "core/compress/codec_prices.h"

#include <algorithm>

#include "core/model/link_names.h"

namespace deft::compress {
namespace {

// What each of `n` nodes receives of the parameter servers' answers, over the gradients' bytes, if an encoding has `share` of them: of
// its own segments the encodings of the others, or float32.
double share_from_servers(double share, double n) { return share * (n - 1) / n + std::min(share * (n - 1), 1.0) / n; }

}  // namespace

// A node also decodes what all bring for its own segment, and encodes that sum. It receives the sparse encodings of all others, but
// of an all-reduce twice (n - 1) / n of the data. If that is less, sparse encodings are summed by an all-reduce of float32.
model::CodecCost price_between_nodes(const Codec& codec, const model::CodecCost& alone, std::size_t nodes,
                                     const std::vector<std::string>& links) {
  model::CodecCost cost = alone;
  const auto n = static_cast<double>(nodes);
  if (codec.traits().law == Law::kSparse) {
    const bool is_gathered = cost.wire_share * n <= 2;
    cost.wire_share = is_gathered ? cost.wire_share * n / 2 : 1;
    if (is_gathered) cost.decode_us_per_byte *= n;
  } else if (codec.traits().law != Law::kLowRank) {
    cost.encode_us_per_byte *= 1 + 1 / n;
    cost.decode_us_per_byte *= 2;
    if (codec.traits().uses_feedback && std::ranges::any_of(links, model::has_servers))
      for (const std::string& link : links)
        cost.link_shares.push_back(model::has_servers(link) ? share_from_servers(cost.wire_share, n) : cost.wire_share);
  }
  return cost;
}

}  // namespace deft::compress
