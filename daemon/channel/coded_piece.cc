#include "daemon/channel/coded_piece.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace deft::daemon {
namespace {

using link::Range;
using link::WorkRequest;

double square(float value) { return static_cast<double>(value) * static_cast<double>(value); }

// What travels as it is, packed into one message: first the exact elements, then those that take residuals along.
class Exact final : public CodedPiece {
 public:
  Exact(const CodedWork& work, BufferPool& buffers)
      : CodedPiece(work, buffers,
                   (elements_of(work.codings->exact) + elements_of(work.codings->settled)) * sizeof(float)) {}

  Result<void> encode() override {
    for_each([this](const Range& range, std::byte* at) {
      std::memcpy(at, work().of(range).data(), range.count * sizeof(float));
    });
    std::byte* at = memory().data() + elements_of(work().codings->exact) * sizeof(float);
    for (const Range& range : work().codings->settled) {
      settle(range, {reinterpret_cast<float*>(at), range.count});
      at += range.count * sizeof(float);
    }
    return {};
  }

  WorkRequest request() override {
    return WorkRequest::all_reduce(memory().data(), memory().size() / sizeof(float), model::DType::kFloat32,
                                   model::ReduceOp::kSum);
  }

  Result<void> decode(bool first_time) override {
    if (first_time && !what_was_sent().empty()) {
      const std::size_t at = elements_of(work().codings->exact) * sizeof(float);
      work().take_back_where_not_finite(work().codings->settled, memory().subspan(at), what_was_sent().subspan(at));
    }
    for_each([this](const Range& range, const std::byte* at) {
      std::memcpy(work().of(range).data(), at, range.count * sizeof(float));
    });
    return {};
  }

  [[nodiscard]] bool needs_what_was_sent() const override { return !work().codings->settled.empty(); }

 private:
  template <typename Visit>
  void for_each(const Visit& visit) {
    std::byte* at = memory().data();
    for (const auto* const ranges : {&work().codings->exact, &work().codings->settled})
      for (const Range& range : *ranges) {
        visit(range, at);
        at += range.count * sizeof(float);
      }
  }

  // A gradient that is not finite is no update, so the residual waits for the next one.
  void settle(const Range& range, std::span<float> values) const {
    if (!all_finite(values)) return;
    const auto use = work().residuals_of(range);
    const std::span<float> residuals = use.values();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += std::exchange(residuals[i], 0.0F);
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

void CodedWork::take_back_where_not_finite(const std::vector<Range>& ranges, std::span<const std::byte> sums_message,
                                           std::span<const std::byte> sent_message) const {
  std::size_t at = 0;
  for (const Range& range : ranges) {
    const std::span sums(reinterpret_cast<const float*>(sums_message.data() + at), range.count);
    const std::span sent(reinterpret_cast<const float*>(sent_message.data() + at), range.count);
    at += range.count * sizeof(float);
    if (all_finite(sums)) continue;
    const auto use = residuals_of(range);
    take_back(use.values(), sums, sent, of(range));
  }
}

}  // namespace deft::daemon
