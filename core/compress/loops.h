// The loops behind every kernel table. A translation unit includes this header once, compiled for its instruction set:
// everything is in unnamed namespaces, so no code built for one set can be linked into another.
//
// Each block is read from memory once; what needs several passes over it finds it in the first cache.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "core/compress/halves.h"
#include "core/compress/integers.h"
#include "core/compress/measure_loops.h"
#include "core/compress/select_loops.h"
#include "core/compress/signs.h"
#include "core/compress/stochastic.h"

namespace deft::compress {
namespace {

constexpr std::size_t kMostBlockBytes = kBlock * sizeof(float) + sizeof(float);

template <typename Format>
std::size_t code_bytes(const BlockKey& key, std::size_t count) {
  return Format::kValueBytes > 0 ? Format::kValueBytes * count : Format::bytes(key.level);
}

// residual = values - decoded, except where the value was not finite.
template <typename Format>
void leave_out(const BlockKey& key, const float* __restrict values, const std::byte* code, float* __restrict residual,
               std::size_t count) {
  float decoded[kBlock];
  static_cast<void>(Format::template decode<false>(key, code, decoded));
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (Format::kValueBytes > 0) {
      residual[i] = is_finite(values[i]) ? values[i] - decoded[i] : residual[i];
    } else {
      residual[i] = values[i] - decoded[i];
    }
  }
}

// One whole block, or a short one from `count` < 256 values with zeros behind them.
template <typename Format>
void encode_block(const BlockKey& key, const float* __restrict values, float* __restrict residual, std::size_t count,
                  std::byte* __restrict out) {
  if (residual == nullptr) {
    static_cast<void>(Format::encode(key, values, count, out));
    return;
  }
  float sums[kBlock];
  for (std::size_t i = 0; i < kBlock; ++i) sums[i] = values[i] + residual[i];
  if (Format::encode(key, sums, count, out)) leave_out<Format>(key, sums, out, residual, kBlock);
}

template <typename Format>
void encode_short(const BlockKey& key, const float* values, float* residual, std::size_t count, std::byte* out) {
  float padded[kBlock] = {}, rest[kBlock] = {};
  std::byte code[kMostBlockBytes];
  std::memcpy(padded, values, count * sizeof(float));
  if (residual != nullptr) std::memcpy(rest, residual, count * sizeof(float));
  encode_block<Format>(key, padded, residual != nullptr ? rest : nullptr, count, code);
  if (residual != nullptr) std::memcpy(residual, rest, count * sizeof(float));
  std::memcpy(out, code, code_bytes<Format>(key, count));
}

// Asks for the values of a block that is a page ahead: the processor's own prefetching ends with each page.
constexpr std::size_t kBlocksAhead = 4;
inline void prefetch(const float* block) {
  for (std::size_t i = 0; i < kBlock; i += kLanes) __builtin_prefetch(block + kBlocksAhead * kBlock + i);
}

template <typename Format>
void encode(const BlockKey& first, const float* values, float* residual, std::size_t count, std::byte* out) {
  BlockKey key = first;
  for (; count >= kBlock; count -= kBlock, ++key.block) {
    if (count > kBlocksAhead * kBlock + kBlock) {
      prefetch(values);
      if (residual != nullptr) prefetch(residual);
    }
    encode_block<Format>(key, values, residual, kBlock, out);
    values += kBlock;
    out += Format::bytes(key.level);
    if (residual != nullptr) residual += kBlock;
  }
  if (count > 0) encode_short<Format>(key, values, residual, count, out);
}

// A short block in the form of a whole one.
template <typename Format>
const std::byte* widened(const BlockKey& key, const std::byte* in, std::size_t count, std::byte* room) {
  if (count == kBlock || Format::kValueBytes == 0) return in;
  std::memset(room, 0, kMostBlockBytes);
  std::memcpy(room, in, code_bytes<Format>(key, count));
  return room;
}

template <typename Format, bool kAdd>
bool decode_short(const BlockKey& key, const std::byte* in, std::size_t count, float* out) {
  float padded[kBlock] = {};
  std::byte room[kMostBlockBytes];
  if constexpr (kAdd) std::memcpy(padded, out, count * sizeof(float));
  if (!Format::template decode<kAdd>(key, widened<Format>(key, in, count, room), padded)) return false;
  std::memcpy(out, padded, count * sizeof(float));
  return true;
}

template <typename Format, bool kAdd>
bool decode(const BlockKey& first, const std::byte* in, std::size_t count, float* out) {
  BlockKey key = first;
  for (; count >= kBlock; count -= kBlock, ++key.block) {
    if (!Format::template decode<kAdd>(key, in, out)) return false;
    in += Format::bytes(key.level);
    out += kBlock;
  }
  return count == 0 || decode_short<Format, kAdd>(key, in, count, out);
}

// What `count` values of all inputs, each `offset` bytes in, add up to. Gives the input that is garbage, or their number.
template <typename Format>
std::size_t add_inputs(const BlockKey& key, const std::byte* const* inputs, std::size_t input_count, std::size_t offset,
                       std::size_t count, float* sums) {
  std::byte room[kMostBlockBytes];
  for (std::size_t n = 0; n < input_count; ++n) {
    const std::byte* in = widened<Format>(key, inputs[n] + offset, count, room);
    const bool ok =
        n == 0 ? Format::template decode<false>(key, in, sums) : Format::template decode<true>(key, in, sums);
    if (!ok) return n;
  }
  return input_count;
}

// The code of the sum of `count` values of all inputs. Gives the input that is garbage, or their number. `sums` are wanted for
// what the code leaves out; formats with a sum of their own do without them otherwise.
template <typename Format>
std::size_t sum_block(const BlockKey& key, const std::byte* const* inputs, std::size_t input_count, std::size_t offset,
                      std::size_t count, float* sums, bool wants_sums, std::byte* code) {
  constexpr bool kHasOwnSum = requires { Format::sum(key, inputs, input_count, offset, code); };
  if (wants_sums || !kHasOwnSum) {
    const std::size_t garbage = add_inputs<Format>(key, inputs, input_count, offset, count, sums);
    if (garbage < input_count) return garbage;
    for (std::size_t i = count; i < kBlock; ++i) sums[i] = 0;
  }
  if constexpr (kHasOwnSum) return Format::sum(key, inputs, input_count, offset, code);
  static_cast<void>(Format::encode(key, sums, count, code));
  return input_count;
}

// sums - decoded, and 0 if a value is not finite.
template <typename Format>
void leave_out_of_sum(const BlockKey& key, const float* __restrict sums, const std::byte* code,
                      float* __restrict left_out, std::size_t count) {
  float decoded[kBlock];
  static_cast<void>(Format::template decode<false>(key, code, decoded));
  for (std::size_t i = 0; i < count; ++i) {
    const float left = sums[i] - decoded[i];
    left_out[i] = is_finite(left) ? left : 0.0F;
  }
}

template <typename Format>
std::size_t combine(const BlockKey& first, const std::byte* const* inputs, std::size_t input_count, std::size_t count,
                    std::byte* out, float* left_out) {
  BlockKey key = first;
  std::size_t offset = 0;
  for (std::size_t done = 0; done < count; done += kBlock, ++key.block) {
    const std::size_t size = count - done < kBlock ? count - done : kBlock;
    float sums[kBlock];
    std::byte code[kMostBlockBytes];
    const std::size_t garbage =
        sum_block<Format>(key, inputs, input_count, offset, size, sums, left_out != nullptr, code);
    if (garbage < input_count) return garbage;
    std::memcpy(out + offset, code, code_bytes<Format>(key, size));
    if (left_out != nullptr) leave_out_of_sum<Format>(key, sums, code, left_out + done, size);
    offset += code_bytes<Format>(key, size);
  }
  return input_count;
}

// momentum = beta * momentum + (1 - beta) * values, which is then encoded. A block with NaN or infinity leaves the momentum as
// it was, and is encoded as such.
template <typename Format>
void encode_momentum_block(const BlockKey& key, const float* __restrict values, float* __restrict momentum, float beta,
                           std::size_t count, std::byte* __restrict out) {
  const bool finite = largest_bits(values) < kInfinity;
  for (std::size_t i = 0; finite && i < kBlock; ++i) momentum[i] = beta * momentum[i] + (1 - beta) * values[i];
  static_cast<void>(Format::encode(key, finite ? momentum : values, count, out));
}

template <typename Format>
void encode_momentum(const BlockKey& first, const float* values, float* momentum, float beta, std::size_t count,
                     std::byte* out) {
  BlockKey key = first;
  for (; count >= kBlock; count -= kBlock, ++key.block) {
    encode_momentum_block<Format>(key, values, momentum, beta, kBlock, out);
    values += kBlock;
    momentum += kBlock;
    out += Format::bytes(key.level);
  }
  if (count == 0) return;
  float padded[kBlock] = {}, kept[kBlock] = {};
  std::memcpy(padded, values, count * sizeof(float));
  std::memcpy(kept, momentum, count * sizeof(float));
  encode_momentum_block<Format>(key, padded, kept, beta, count, out);
  std::memcpy(momentum, kept, count * sizeof(float));
}

template <typename Format>
void fill(CodecKernels& table, BlockFormat format) {
  table.blocks[static_cast<std::size_t>(format)] = {encode<Format>, decode<Format, false>, decode<Format, true>,
                                                    combine<Format>, nullptr};
}

CodecKernels make_table() {
  CodecKernels table;
  table.select = {largest_of, add_values, add_momentum, find_large};
  table.measure = {squares, squares_of_sums};
  fill<BFloat16Format>(table, BlockFormat::kBFloat16);
  fill<Float16Format>(table, BlockFormat::kFloat16);
  fill<IntegerFormat<8, 127>>(table, BlockFormat::kInt8);
  fill<IntegerFormat<4, 7>>(table, BlockFormat::kInt4);
  fill<Int2Format>(table, BlockFormat::kInt2);
  fill<SignFormat>(table, BlockFormat::kSign);
  fill<OneBitFormat>(table, BlockFormat::kOneBit);
  fill<VoteFormat>(table, BlockFormat::kVote);
  table.blocks[static_cast<std::size_t>(BlockFormat::kVote)].encode_momentum = encode_momentum<VoteFormat>;
  fill<TernGradFormat>(table, BlockFormat::kTernGrad);
  fill<QsgdFormat>(table, BlockFormat::kQsgd);
  fill<RandkFormat<false>>(table, BlockFormat::kRandk);
  fill<RandkFormat<true>>(table, BlockFormat::kWholeRandk);
  return table;
}

}  // namespace
}  // namespace deft::compress
