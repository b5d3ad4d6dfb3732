#include "daemon/channel/coded_piece.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/compress/registry.h"

namespace deft::daemon {
namespace {

using link::Range;
using link::WorkRequest;

double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

// Packs the elements that no codec encodes into one message of the arena's type: first the exact elements, then the elements that take
// residuals along.
class Exact final : public CodedPiece {
 public:
  Exact(const CodedWork& work, BufferPool& buffers)
      : CodedPiece(work, buffers,
                   (elements_of(work.codings->exact) + elements_of(work.codings->settled)) * work.element_bytes()) {}

  Result<void> encode() override {
    for_each([this](const Range& range, std::span<std::byte> message) {
      std::ranges::copy(work().in_arena(range), message.begin());
    });
    std::span<std::byte> rest = memory().subspan(settled_at());
    for (const Range& range : work().codings->settled) {
      const std::size_t bytes = range.count * work().element_bytes();
      if (auto ok = settle(range, rest.first(bytes)); !ok) return ok;
      rest = rest.subspan(bytes);
    }
    return {};
  }

  WorkRequest request() override {
    return WorkRequest::all_reduce(memory().data(), memory().size() / work().element_bytes(), work().codings->dtype,
                                   model::ReduceOp::kSum);
  }

  Result<void> decode(bool first_time) override {
    if (first_time && !what_was_sent().empty())
      if (auto ok = take_back(memory().subspan(settled_at()), what_was_sent().subspan(settled_at())); !ok) return ok;
    for_each([this](const Range& range, std::span<const std::byte> message) {
      std::ranges::copy(message, work().in_arena(range).begin());
    });
    return {};
  }

  [[nodiscard]] bool needs_what_was_sent() const override { return !work().codings->settled.empty(); }

 private:
  [[nodiscard]] std::size_t settled_at() const { return elements_of(work().codings->exact) * work().element_bytes(); }

  template <typename Visit>
  void for_each(const Visit& visit) {
    std::span<std::byte> rest = memory();
    for (const auto* const ranges : {&work().codings->exact, &work().codings->settled})
      for (const Range& range : *ranges) {
        const std::size_t bytes = range.count * work().element_bytes();
        visit(range, rest.first(bytes));
        rest = rest.subspan(bytes);
      }
  }

  // A gradient that is not finite is no update, so the residual waits for the next one. What halves round off becomes the residual.
  Result<void> settle(const Range& range, std::span<std::byte> message) const {
    const std::span<const float> values = work().of(range);
    if (!all_finite(values)) return {};
    const auto use = work().residuals_of(range);
    const std::span<float> residuals = use.values();
    if (const compress::Codec* const half = compress::codec_of(work().codings->dtype)) {
      const auto used = half->encode_with_feedback(work().slice_at(range.first), values, residuals, message);
      if (!used) return tl::unexpected(used.error());
      return {};
    }
    auto* const sums = reinterpret_cast<float*>(message.data());
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] = values[i] + std::exchange(residuals[i], 0.0F);
    return {};
  }

  Result<void> take_back(std::span<const std::byte> sums, std::span<const std::byte> sent) const {
    const auto& settled = work().codings->settled;
    const compress::Codec* const half = compress::codec_of(work().codings->dtype);
    if (half == nullptr) {
      work().take_back_where_not_finite(settled, floats_of(sums), floats_of(sent));
      return {};
    }
    std::vector<float> wide_sums(elements_of(settled)), wide_sent(wide_sums.size());
    if (auto ok = half->decode({}, sums, wide_sums); !ok) return ok;
    if (auto ok = half->decode({}, sent, wide_sent); !ok) return ok;
    work().take_back_where_not_finite(settled, wide_sums, wide_sent);
    return {};
  }
};

}  // namespace

std::unique_ptr<CodedPiece> exact_piece(const CodedWork& work, BufferPool& buffers) {
  return std::make_unique<Exact>(work, buffers);
}

std::size_t elements_of(std::span<const Range> ranges) {
  std::size_t count = 0;
  for (const Range& range : ranges) count += range.count;
  return count;
}

tl::unexpected<Error> garbage_of(const Error& error, std::size_t node, const compress::Codec& codec) {
  return fail(ErrorKind::kViolation,
              "node " + std::to_string(node) + " sent what " + std::string(codec.traits().name) +
                  " cannot decode: " + error.message(),
              "see the log of that node, and check its memory and network");
}

Result<std::size_t> CodedWork::encode(const compress::Codec& codec, const Range& range,
                                      std::span<std::byte> out) const {
  if (!has_feedback(codec)) return codec.encode(slice_at(range.first), of(range), out);
  const auto use = residuals_of(range);
  const std::span<const float> gradient = of(range), residuals = use.values();
  double given = 0, left_out = 0;
  if (loss != nullptr)
    for (std::size_t i = 0; i < gradient.size(); ++i) given += square(gradient[i] + residuals[i]);
  auto used = codec.encode_with_feedback(slice_at(range.first), gradient, use.values(), out);
  if (loss == nullptr) return used;
  for (const float residual : residuals) left_out += square(residual);
  if (!std::isfinite(given) || !std::isfinite(left_out)) return used;  // it is no update
  loss->given += given;
  loss->left_out += left_out;
  return used;
}

void CodedWork::take_back_where_not_finite(const std::vector<Range>& ranges, std::span<const float> sums,
                                           std::span<const float> sent) const {
  for (const Range& range : ranges) {
    const std::span of_range = sums.first(range.count);
    if (!all_finite(of_range)) {
      const auto use = residuals_of(range);
      take_back(use.values(), of_range, sent.first(range.count), of(range));
    }
    sums = sums.subspan(range.count);
    sent = sent.subspan(range.count);
  }
}

}  // namespace deft::daemon
