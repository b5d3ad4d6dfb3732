#include "core/compress/sparse_codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "core/compress/selection.h"

namespace deft::compress {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7F800000U;
constexpr int kWarmupStages = 5;

}  // namespace

std::size_t SparseCodec::entries_at(std::uint64_t generation, std::size_t elements) const {
  if (elements == 0) return 0;
  double ratio = settings_.ratio;
  if (generation < settings_.warmup) {
    const auto stage =
        static_cast<int>(static_cast<double>(generation) / static_cast<double>(settings_.warmup) * kWarmupStages);
    ratio = std::max(ratio, std::ldexp(1.0, -2 * (stage + 1)));
  }
  const auto entries = static_cast<std::size_t>(std::lround(ratio * static_cast<double>(elements)));
  return std::clamp<std::size_t>(entries, 1, elements);
}

std::size_t SparseCodec::encoded_bytes_at(std::uint64_t generation, std::size_t elements) const {
  return elements == 0 ? 0 : kSparseHeaderBytes + entries_at(generation, elements) * kSparseEntryBytes;
}

Result<void> SparseCodec::check(const Slice& slice, std::size_t elements, std::size_t out_bytes) const {
  if (elements > std::numeric_limits<std::uint32_t>::max())
    return fail(ErrorKind::kInternal, std::to_string(elements) + " values are too many for one sparse encoding");
  if (out_bytes >= encoded_bytes_at(slice.generation, elements)) return {};
  return fail(ErrorKind::kInternal, std::to_string(elements) + " values do not fit into " + std::to_string(out_bytes) +
                                        " bytes as " + std::string(traits_.name));
}

Result<std::size_t> SparseCodec::encode(const Slice& slice, std::span<const float> values,
                                        std::span<std::byte> out) const {
  if (auto ok = check(slice, values.size(), out.size()); !ok) return tl::unexpected(ok.error());
  if (values.empty()) return 0;
  if (kernels_.largest(values.data(), values.size()) >= kInfinityBits)
    return write_sparse_nan(settings_.id, values.size(), out);
  Selection selection(kernels_, values.size(), entries_at(slice.generation, values.size()));
  const auto peek = [&](std::size_t first, std::span<float, Selection::kRun> to) {
    std::ranges::copy(values.subspan(first, to.size()), to.begin());
  };
  return write_sparse(settings_.id, values, selection.find(values.data(), peek, nullptr), out);
}

Result<std::size_t> SparseCodec::encode_with_feedback(const Slice& slice, std::span<const float> values,
                                                      std::span<float> residual, std::span<std::byte> out) const {
  return encode_with_momentum(slice, values, {}, residual, out);
}

Result<std::size_t> SparseCodec::encode_with_momentum(const Slice& slice, std::span<const float> values,
                                                      std::span<float> momentum, std::span<float> residual,
                                                      std::span<std::byte> out) const {
  if (auto ok = check(slice, values.size(), out.size()); !ok) return tl::unexpected(ok.error());
  const bool has_momentum = traits_.takes_momentum && !momentum.empty();
  if (residual.size() != values.size() || (has_momentum && momentum.size() != values.size()))
    return fail(ErrorKind::kInternal, "a residual or momentum has another size than its values");
  if (values.empty()) return 0;
  if (kernels_.largest(values.data(), values.size()) >= kInfinityBits)
    return write_sparse_nan(settings_.id, values.size(), out);

  const auto advance = [&](const float* from, float* moved, float* left, std::size_t count) {
    if (has_momentum)
      kernels_.add_momentum(from, moved, settings_.momentum, left, count);
    else
      kernels_.add(from, left, count);
  };
  const auto peek = [&](std::size_t first, std::span<float, Selection::kRun> to) {
    float moved[Selection::kRun] = {};
    std::ranges::copy(residual.subspan(first, to.size()), to.begin());
    if (has_momentum) std::ranges::copy(momentum.subspan(first, to.size()), moved);
    advance(values.data() + first, moved, to.data(), to.size());
  };
  const auto prepare = [&](std::size_t first, std::size_t count) {
    advance(values.data() + first, has_momentum ? momentum.data() + first : nullptr, residual.data() + first, count);
  };
  Selection selection(kernels_, values.size(), entries_at(slice.generation, values.size()));
  const auto indices = selection.find(residual.data(), peek, prepare);
  const std::size_t used = write_sparse(settings_.id, residual, indices, out);
  for (const std::uint32_t index : indices) {
    residual[index] = 0;
    if (has_momentum) momentum[index] = 0;
  }
  return used;
}

Result<void> SparseCodec::decode(const Slice& slice, std::span<const std::byte> in, std::span<float> out) const {
  std::ranges::fill(out, 0.0F);
  return decode_add(slice, in, out);
}

Result<void> SparseCodec::decode_add(const Slice& /*slice*/, std::span<const std::byte> in,
                                     std::span<float> sum) const {
  const auto code = read_sparse(settings_.id, in, sum.size());
  if (!code) return tl::unexpected(code.error());
  add_sparse(*code, sum);
  return {};
}

Result<void> SparseCodec::combine(const Slice& /*slice*/, std::span<const std::span<const std::byte>> /*inputs*/,
                                  std::span<std::byte> /*out*/, std::span<float> /*left_out*/,
                                  std::size_t& garbage_input) const {
  garbage_input = 0;
  return fail(ErrorKind::kInternal, std::string(traits_.name) + " is gathered and added, not combined by an owner");
}

}  // namespace deft::compress
