// Matrices as products of two factors (core/compress/low_rank.h): all-reduces of factors, as float32.
#include "daemon/channel/coded_piece.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/compress/low_rank_codec.h"
#include "core/compress/measures.h"

namespace deft::daemon {
namespace {

using compress::MatrixShape;
using link::WorkRequest;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

using Factor = std::span<const float>;

// The result of an earlier turn as a basis, or random directions. The same on all nodes.
std::vector<float> basis_of(const CodedMatrix& matrix, const std::vector<float>& factor, std::size_t elements) {
  const std::uint64_t seed = matrix.factors->seed + matrix.turn;
  std::vector<float> basis = factor;
  if (basis.empty()) {
    basis.resize(elements);
    compress::start_factor(seed, basis);
  }
  compress::make_basis(basis, matrix.shape.rank, ~seed);
  return basis;
}

std::span<float> floats(std::span<std::byte> bytes) {
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

WorkRequest factor_sum(std::span<std::byte> factors) {
  return WorkRequest::all_reduce(factors.data(), factors.size() / sizeof(float), model::DType::kFloat32,
                                 model::ReduceOp::kSum);
}

using ElementsOf = std::size_t (*)(const CodedMatrix&);

std::size_t factor_bytes(const Coding& coding, ElementsOf elements_of_one) {
  std::size_t count = 0;
  for (const CodedMatrix& matrix : coding.matrices) count += elements_of_one(matrix);
  return count * sizeof(float);
}

// What all methods do with the matrices of a coding, which they name by an index.
class LowRankPiece : public CodedPiece {
 protected:
  LowRankPiece(const CodedWork& work, const Coding& coding, BufferPool& buffers, std::size_t bytes)
      : CodedPiece(work, buffers, bytes), pool_(buffers), coding_(coding) {}

  [[nodiscard]] const CodedMatrix& matrix(std::size_t index) const { return coding_.matrices[index]; }

  // visit(index, factor), for each matrix with its own part of `factors`.
  template <typename Visit>
  void for_each(std::span<float> factors, ElementsOf elements_of_one, const Visit& visit) const {
    for (std::size_t index = 0; index < coding_.matrices.size(); ++index) {
      const std::size_t count = elements_of_one(matrix(index));
      visit(index, factors.first(count));
      factors = factors.subspan(count);
    }
  }

  // visit(m, residuals): m is the gradient with its residual, and may be changed.
  template <typename Visit>
  void with_residuals(std::size_t index, const Visit& visit) {
    const auto use = work().residuals_of(coding_.ranges[index]);
    const std::span<float> residuals = use.values();
    const Factor gradient = work().of(coding_.ranges[index]);
    std::vector<std::byte> memory = pool_.take(residuals.size_bytes());
    const std::span<float> m = floats(memory).first(residuals.size());
    for (std::size_t i = 0; i < m.size(); ++i) m[i] = gradient[i] + residuals[i];
    visit(m, residuals);
    pool_.give_back(std::move(memory));
  }

  // What p q^T leaves out of m becomes the residual.
  void leave_out(std::size_t index, Factor p, Factor q, std::span<float> m, std::span<float> residuals) const {
    CodecLoss* const loss = work().loss;
    if (loss != nullptr) loss->given += compress::sum_of_squares(m);
    compress::subtract(matrix(index).shape, p, q, m);
    std::ranges::copy(m, residuals.begin());
    if (loss != nullptr) loss->left_out += compress::sum_of_squares(m);
  }

  void apply(std::size_t index, Factor p, Factor q) const {
    compress::reconstruct(matrix(index).shape, p, q, work().of(coding_.ranges[index]));
  }

  // A sum that is not finite is no update. What this node sent as p q^T goes back to its residuals, without the gradient that it brought.
  void take_back(std::size_t index, Factor p, Factor q) {
    const Factor gradient = work().of(coding_.ranges[index]);
    with_residuals(index, [&](std::span<float> sent, std::span<float> residuals) {
      compress::reconstruct(matrix(index).shape, p, q, sent);
      float largest = 0;  // an element of the product is a sum of larger ones
      for (std::size_t i = 0; i < sent.size(); ++i)
        largest = std::max({largest, std::abs(sent[i]), std::abs(gradient[i])});
      for (std::size_t i = 0; i < residuals.size(); ++i)
        residuals[i] = taken_back(residuals[i], sent[i], gradient[i], largest);
    });
  }
  void refuse(std::size_t index) const { std::ranges::fill(work().of(coding_.ranges[index]), kNaN); }

 private:
  BufferPool& pool_;
  const Coding& coding_;
};

bool sends_p(const CodedMatrix& matrix) { return matrix.turn % 2 == 0; }

// In even turns q is a basis that all nodes have, and p is summed. In odd turns it is the other way round. The result of a turn is the
// basis of the next one.
class AcpSgd final : public LowRankPiece {
 public:
  AcpSgd(const CodedWork& work, const Coding& coding, BufferPool& buffers)
      : LowRankPiece(work, coding, buffers, factor_bytes(coding, sent_elements)) {}

  Result<void> encode() override {
    for_each(floats(memory()), sent_elements, [this](std::size_t index, std::span<float> own) {
      with_residuals(index, [&](std::span<float> m, std::span<float> residuals) { make(index, m, residuals, own); });
    });
    return {};
  }

  WorkRequest request() override { return factor_sum(memory()); }

  // In a replay for the other nodes' sake this node has the result, and its factors may be those of a later generation.
  Result<void> decode(bool first_time) override {
    if (!first_time) return {};
    const Factor all_sent(reinterpret_cast<const float*>(what_was_sent().data()),
                          what_was_sent().size() / sizeof(float));
    std::size_t at = 0;
    for_each(floats(memory()), sent_elements, [&](std::size_t index, Factor sum) {
      use(index, sum, all_sent.empty() ? Factor() : all_sent.subspan(at, sum.size()));
      at += sum.size();
    });
    return {};
  }

  [[nodiscard]] bool needs_what_was_sent() const override { return true; }

 private:
  static std::size_t sent_elements(const CodedMatrix& matrix) {
    return sends_p(matrix) ? matrix.shape.p_elements() : matrix.shape.q_elements();
  }
  static std::vector<float> basis_of_turn(const CodedMatrix& matrix) {
    return sends_p(matrix) ? basis_of(matrix, matrix.factors->q, matrix.shape.q_elements())
                           : basis_of(matrix, matrix.factors->p, matrix.shape.p_elements());
  }
  // call(p, q)
  template <typename Call>
  static void ordered(const CodedMatrix& matrix, Factor sent, Factor basis, const Call& call) {
    sends_p(matrix) ? call(sent, basis) : call(basis, sent);
  }

  // If what this node brings is not finite, the residual waits.
  void make(std::size_t index, std::span<float> m, std::span<float> residuals, std::span<float> own) const {
    const MatrixShape& shape = matrix(index).shape;
    const std::vector<float> basis = basis_of_turn(matrix(index));
    if (sends_p(matrix(index)))
      compress::project(shape, m, basis, own);
    else
      compress::back_project(shape, m, basis, own);
    if (compress::all_finite(m) && compress::is_usable(own))
      ordered(matrix(index), own, basis, [&](Factor p, Factor q) { leave_out(index, p, q, m, residuals); });
    else
      std::ranges::fill(own, kNaN);
  }

  void use(std::size_t index, Factor sum, Factor own) {
    const std::vector<float> basis = basis_of_turn(matrix(index));
    if (compress::is_usable(sum)) {
      ordered(matrix(index), sum, basis, [&](Factor p, Factor q) { apply(index, p, q); });
      auto& next = sends_p(matrix(index)) ? matrix(index).factors->p : matrix(index).factors->q;
      next.assign(sum.begin(), sum.end());
      return;
    }
    if (!own.empty() && compress::is_usable(own))
      ordered(matrix(index), own, basis, [&](Factor p, Factor q) { take_back(index, p, q); });
    refuse(index);
  }
};

// Two all-reduces: p = m q, of which all nodes make the same basis, and then q = m^T p. The message holds all p, and behind them all q.
class PowerSgd final : public LowRankPiece {
 public:
  PowerSgd(const CodedWork& work, const Coding& coding, BufferPool& buffers)
      : LowRankPiece(work, coding, buffers, factor_bytes(coding, p_elements) + factor_bytes(coding, q_elements)),
        p_bytes_(factor_bytes(coding, p_elements)) {}

  Result<void> encode() override {
    std::ranges::fill(brought_second(), std::byte{});
    for_each(floats(first()), p_elements, [this](std::size_t index, std::span<float> own) {
      const std::vector<float> basis = basis_of(matrix(index), matrix(index).factors->q, q_elements(matrix(index)));
      with_residuals(index, [&](std::span<float> m, std::span<float>) {
        compress::project(matrix(index).shape, m, basis, own);
        if (!compress::all_finite(m) || !compress::is_usable(own)) std::ranges::fill(own, kNaN);
      });
    });
    return {};
  }

  WorkRequest request() override { return factor_sum(first()); }

  [[nodiscard]] bool has_second_request() const override { return true; }
  [[nodiscard]] std::span<std::byte> brought_second() override { return memory().subspan(p_bytes_); }
  WorkRequest second_request() override { return factor_sum(brought_second()); }

  // Another generation may have changed the residuals since encode(). The error of q is right for the residuals of now.
  void encode_second(bool is_restored) override {
    std::vector<Factor> bases;
    for_each(floats(first()), p_elements, [&](std::size_t index, std::span<float> p) {
      is_usable_.push_back(compress::is_usable(p));
      if (is_usable_.back())
        compress::make_basis(p, matrix(index).shape.rank, matrix(index).factors->seed - matrix(index).turn);
      bases.push_back(p);
    });
    for_each(floats(brought_second()), q_elements, [&](std::size_t index, std::span<float> own) {
      if (!is_restored && is_usable_[index])
        with_residuals(index, [&](std::span<float> m, std::span<float> residuals) {
          make(index, bases[index], m, residuals, own);
        });
    });
    const std::span<const float> own = floats(brought_second());
    own_.assign(own.begin(), own.end());
  }

  Result<void> decode(bool first_time) override {
    if (!first_time) return {};
    std::vector<Factor> bases;
    for_each(floats(first()), p_elements, [&](std::size_t, Factor p) { bases.push_back(p); });
    std::size_t at = 0;
    for_each(floats(brought_second()), q_elements, [&](std::size_t index, Factor sum) {
      use(index, bases[index], sum, Factor(own_).subspan(at, sum.size()));
      at += sum.size();
    });
    return {};
  }

  [[nodiscard]] bool needs_what_was_sent() const override {
    return false;
  }  // it has a copy of q, and p changes nothing here

 private:
  static std::size_t p_elements(const CodedMatrix& matrix) { return matrix.shape.p_elements(); }
  static std::size_t q_elements(const CodedMatrix& matrix) { return matrix.shape.q_elements(); }
  [[nodiscard]] std::span<std::byte> first() { return memory().first(p_bytes_); }

  void make(std::size_t index, Factor basis, std::span<float> m, std::span<float> residuals,
            std::span<float> own) const {
    compress::back_project(matrix(index).shape, m, basis, own);
    if (compress::all_finite(m) && compress::is_usable(own))
      leave_out(index, basis, own, m, residuals);
    else
      std::ranges::fill(own, kNaN);
  }

  void use(std::size_t index, Factor basis, Factor sum, Factor own) {
    if (is_usable_[index] && compress::is_usable(sum)) {
      apply(index, basis, sum);
      matrix(index).factors->q.assign(sum.begin(), sum.end());
      return;
    }
    if (is_usable_[index] && compress::is_usable(own)) take_back(index, basis, own);
    refuse(index);
  }

  const std::size_t p_bytes_;
  std::vector<bool> is_usable_;  // p of each matrix
  std::vector<float> own_;       // q of this node
};

}  // namespace

std::unique_ptr<CodedPiece> low_rank_piece(const CodedWork& work, const Coding& coding, BufferPool& buffers) {
  if (compress::as_low_rank(*coding.codec).method() == compress::LowRankMethod::kPowerSgd)
    return std::make_unique<PowerSgd>(work, coding, buffers);
  return std::make_unique<AcpSgd>(work, coding, buffers);
}

}  // namespace deft::daemon
