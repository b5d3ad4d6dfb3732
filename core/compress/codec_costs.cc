#include "core/compress/codec_costs.h"

#include <algorithm>
#include <random>
#include <vector>

#include "core/base/clock.h"
#include "core/compress/low_rank_codec.h"
#include "core/compress/registry.h"
#include "core/model/link_names.h"

namespace deft::compress {
namespace {

constexpr std::size_t kElements = std::size_t{64}
                                  << 10;  // fits a core's cache, as a part that has just been summed nearly does
constexpr int kRounds = 5;                // the quickest counts: others were disturbed
constexpr TimeUs kLongestUs = 60'000'000;

std::vector<float> gradients() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(kElements);
  for (float& value : values) value = normal(random);
  return values;
}

double relative_error(const std::vector<float>& values, const std::vector<float>& decoded) {
  double error = 0, square = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = static_cast<double>(values[i]) - static_cast<double>(decoded[i]);
    error += off * off;
    square += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  return error / square;
}

// The cost of a square matrix. Every generation sends one of its factors, or both. Larger matrices send a smaller share, and matrices
// that are cut send a larger share.
model::CodecCost measure_low_rank(const LowRankCodec& codec) {
  constexpr std::size_t kSide = 256;
  static_assert(kSide * kSide == kElements);
  const MatrixShape shape{kSide, kSide, codec.rank()};
  const bool sends_both = codec.method() == LowRankMethod::kPowerSgd;
  const std::size_t sent = shape.p_elements() + (sends_both ? shape.q_elements() : 0);
  const std::vector<float> values = gradients();
  const double bytes = kElements * sizeof(float);
  std::vector<float> p(shape.p_elements()), q(shape.q_elements()), left(kElements), decoded(kElements);
  start_factor(1, q);
  TimeUs encode_us = kLongestUs, decode_us = kLongestUs;
  for (int round = 0; round < kRounds; ++round) {
    const TimeUs begin_us = MonotonicClock::now();
    left = values;
    make_basis(q, shape.rank, 1);
    project(shape, left, q, p);
    if (sends_both) {
      make_basis(p, shape.rank, 2);
      back_project(shape, left, p, q);
    }
    subtract(shape, p, q, left);
    const TimeUs encoded_us = MonotonicClock::now();
    reconstruct(shape, p, q, decoded);
    encode_us = std::min(encode_us, encoded_us - begin_us);
    decode_us = std::min(decode_us, MonotonicClock::now() - encoded_us);
  }
  return {.name = text_of(codec),
          .wire_share = static_cast<double>(sent * sizeof(float)) / bytes,
          .encode_us_per_byte = static_cast<double>(encode_us) / bytes,
          .decode_us_per_byte = static_cast<double>(decode_us) / bytes,
          .error = relative_error(values, decoded)};
}

// What each of `n` nodes receives of the parameter servers' answers, over the gradients' bytes, if an encoding has `share` of them: of
// its own segments the encodings of the others, or float32.
double share_from_servers(double share, double n) { return share * (n - 1) / n + std::min(share * (n - 1), 1.0) / n; }

// Whether so many nodes gather each other's sparse encodings.
bool is_gathered(const model::CodecCost& alone, double n) { return alone.wire_share * n <= 2; }

}  // namespace

model::CodecCost measure_cost(const Codec& codec) {
  if (codec.traits().law == Law::kLowRank) return measure_low_rank(as_low_rank(codec));
  const std::vector<float> values = gradients();
  std::vector<float> residual(kElements), decoded(kElements);
  std::vector<std::byte> code(codec.encoded_bytes(kElements));
  model::CodecCost cost{.name = text_of(codec)};
  const double bytes = kElements * sizeof(float);
  for (int round = 0; round < kRounds; ++round) {
    std::ranges::fill(residual, 0.0F);
    const Slice slice{.job = 1, .generation = static_cast<std::uint64_t>(round), .first = 0};
    const TimeUs begin_us = MonotonicClock::now();
    const auto used = codec.traits().uses_feedback ? codec.encode_with_feedback(slice, values, residual, code)
                                                   : codec.encode(slice, values, code);
    const TimeUs encoded_us = MonotonicClock::now();
    if (!used) return cost;  // it encodes all that is finite
    static_cast<void>(codec.decode(slice, std::span(code).first(*used), decoded));
    const TimeUs decoded_us = MonotonicClock::now();
    const auto per_byte = [bytes](TimeUs us) { return static_cast<double>(us) / bytes; };
    cost.encode_us_per_byte = round == 0 ? per_byte(encoded_us - begin_us)
                                         : std::min(cost.encode_us_per_byte, per_byte(encoded_us - begin_us));
    cost.decode_us_per_byte = round == 0 ? per_byte(decoded_us - encoded_us)
                                         : std::min(cost.decode_us_per_byte, per_byte(decoded_us - encoded_us));
    cost.wire_share = static_cast<double>(*used) / bytes;
    cost.error = relative_error(values, decoded);
  }
  return cost;
}

double stages_us_per_byte(const Codec& codec, const model::CodecCost& alone, std::size_t nodes) {
  const double encode = alone.encode_us_per_byte, decode = alone.decode_us_per_byte;
  const auto n = static_cast<double>(nodes);
  switch (codec.traits().law) {
    case Law::kLowRank: return as_low_rank(codec).method() == LowRankMethod::kPowerSgd ? 0 : encode + decode;
    case Law::kSparse: return encode + (is_gathered(alone, n) ? n : 1) * decode;
    case Law::kRequantised: return encode + (nodes == 2 ? 2 : 1) * decode;
    case Law::kVoted: break;
  }
  return encode + decode;
}

// A node also decodes what all bring for its own segment, and encodes that sum. Of two nodes each decodes both encodings, and no node
// encodes a sum. It receives the sparse encodings of all others, but of an all-reduce twice (n - 1) / n of the data. If that is less,
// sparse encodings are summed by an all-reduce of float32.
model::CodecCost price_between_nodes(const Codec& codec, const model::CodecCost& alone, std::size_t nodes,
                                     const std::vector<std::string>& links) {
  model::CodecCost cost = alone;
  const auto n = static_cast<double>(nodes);
  if (codec.traits().law == Law::kSparse) {
    cost.wire_share = is_gathered(alone, n) ? alone.wire_share * n / 2 : 1;
    if (is_gathered(alone, n)) cost.decode_us_per_byte *= n;
  } else if (codec.traits().law == Law::kRequantised && nodes == 2) {
    cost.decode_us_per_byte *= 2;
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
