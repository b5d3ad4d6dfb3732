#include "daemon/channel/coded_piece.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/compress/measures.h"
#include "core/compress/registry.h"

namespace deft::daemon {
namespace {

using link::Range;
using link::WorkRequest;

// Packs the elements that no codec encodes into one message of the arena's type, in their order. If they are all elements of the transfer
// and no residual is to be added, the arena itself is the message. Each node decides that by itself: the message has the same bytes.
class Exact final : public CodedPiece {
 public:
  Exact(const CodedWork& work, BufferPool& buffers)
      : CodedPiece(work, buffers,
                   (elements_of(work.codings->exact) + elements_of(work.codings->settled)) * work.element_bytes()) {
    for (const Range& range : work.codings->exact) parts_.push_back({range, false});
    for (const Range& range : work.codings->settled) parts_.push_back({range, true});
    std::ranges::sort(parts_, {}, [](const Part& part) { return part.range.first; });
  }

  Result<void> encode() override {
    is_in_place_ = is_whole() && !may_take_residuals();
    if (is_in_place_) return {};
    return for_each([this](const Part& part, const Range& bytes) -> Result<void> {
      const std::span message = memory().subspan(bytes.first, bytes.count);
      std::ranges::copy(work().in_arena(part.range), message.begin());
      return part.settles ? settle(part.range, message) : Result<void>{};
    });
  }

  WorkRequest request() override {
    return WorkRequest::all_reduce(brought().data(), brought().size() / work().element_bytes(), work().codings->dtype,
                                   model::ReduceOp::kSum);
  }

  Result<void> decode(bool first_time) override {
    if (is_in_place_) return {};
    return for_each([&](const Part& part, const Range& bytes) -> Result<void> {
      const std::span<const std::byte> sums = memory().subspan(bytes.first, bytes.count);
      if (first_time && part.settles && !what_was_sent().empty())
        if (auto ok = take_back(part.range, sums, what_was_sent().subspan(bytes.first, bytes.count)); !ok) return ok;
      std::ranges::copy(sums, work().in_arena(part.range).begin());
      return {};
    });
  }

  [[nodiscard]] std::span<std::byte> brought() override { return is_in_place_ ? work().arena : memory(); }
  [[nodiscard]] bool is_in_place() const override { return is_in_place_; }
  [[nodiscard]] bool needs_what_was_sent() const override { return !is_in_place_ && !work().codings->settled.empty(); }

 private:
  struct Part {
    Range range;
    bool settles = false;  // it takes its residuals along
  };

  // Whether the parts are all that the transfer has, one behind the other.
  [[nodiscard]] bool is_whole() const {
    std::size_t end = 0;
    for (const Part& part : parts_) {
      if (part.range.first != end) return false;
      end += part.range.count;
    }
    return end * work().element_bytes() == work().arena.size();
  }

  [[nodiscard]] bool may_take_residuals() const {
    return std::ranges::any_of(work().codings->settled, [this](const Range& range) { return may_hold(range); });
  }
  [[nodiscard]] bool may_hold(const Range& range) const {
    const Codings& codings = *work().codings;
    return codings.residuals->may_hold(codings.slice.first + range.first, range.count);
  }

  // visit(part, its bytes in the message), until a call fails.
  template <typename Visit>
  Result<void> for_each(const Visit& visit) {
    std::size_t at = 0;
    for (const Part& part : parts_) {
      const Range bytes{at, part.range.count * work().element_bytes()};
      if (auto ok = visit(part, bytes); !ok) return ok;
      at += bytes.count;
    }
    return {};
  }

  // A gradient that is not finite is no update, so the residual waits for the next one. What halves round off becomes the residual.
  Result<void> settle(const Range& range, std::span<std::byte> message) const {
    const std::span<const float> values = work().of(range);
    if (!may_hold(range) || !compress::all_finite(values)) return {};
    auto use = work().residuals_of(range);
    const std::span<float> residuals = use.values();
    if (const compress::Codec* const half = compress::codec_of(work().codings->dtype)) {
      const auto used = half->encode_with_feedback(work().slice_at(range.first), values, residuals, message);
      if (!used) return tl::unexpected(used.error());
      return {};
    }
    auto* const sums = reinterpret_cast<float*>(message.data());
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] = values[i] + std::exchange(residuals[i], 0.0F);
    use.settled();
    return {};
  }

  Result<void> take_back(const Range& range, std::span<const std::byte> sums, std::span<const std::byte> sent) const {
    if (!compress::all_finite(work().of(range))) return {};  // settle() took no residual
    const compress::Codec* const half = compress::codec_of(work().codings->dtype);
    if (half == nullptr) {
      work().take_back_where_not_finite({range}, floats_of(sums), floats_of(sent));
      return {};
    }
    std::vector<float> wide_sums(range.count), wide_sent(range.count);
    if (auto ok = half->decode({}, sums, wide_sums); !ok) return ok;
    if (auto ok = half->decode({}, sent, wide_sent); !ok) return ok;
    work().take_back_where_not_finite({range}, wide_sums, wide_sent);
    return {};
  }

  std::vector<Part> parts_;  // of the message, in its order
  bool is_in_place_ = false;
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
  const double given = loss != nullptr ? compress::sum_of_squares(gradient, residuals) : 0;
  auto used = codec.encode_with_feedback(slice_at(range.first), gradient, use.values(), out);
  if (loss == nullptr) return used;
  const double left_out = compress::sum_of_squares(residuals);
  if (!std::isfinite(given) || !std::isfinite(left_out)) return used;  // it is no update
  loss->given += given;
  loss->left_out += left_out;
  return used;
}

void CodedWork::take_back_where_not_finite(const std::vector<Range>& ranges, std::span<const float> sums,
                                           std::span<const float> sent) const {
  for (const Range& range : ranges) {
    const std::span of_range = sums.first(range.count);
    if (!compress::all_finite(of_range)) {
      const auto use = residuals_of(range);
      take_back(use.values(), of_range, sent.first(range.count), of(range));
    }
    sums = sums.subspan(range.count);
    sent = sent.subspan(range.count);
  }
}

}  // namespace deft::daemon
