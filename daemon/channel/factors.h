// The factors with which the next low-rank encoding of a matrix begins (warm start), beside the residuals. The same on all nodes.
//
//   FactorTable table(key);
//   CodedMatrix matrix = table.turn_of(first, shape, slot, generation);   // for all launches, in their order
//
// Factors belong to whole rows of a matrix and to a slot of the arena. A slot has one generation at a time, so the launch before has
// been decoded on this node when the next one is encoded: nodes never begin with different factors. If a plan cuts other rows out of the
// matrix, they begin with random factors, and the factors of the rows that they overlap are forgotten.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/compress/low_rank.h"

namespace deft::daemon {

// Used by one channel's thread at a time. Empty until a generation has set them.
struct Factors {
  std::uint64_t seed = 0;
  std::vector<float> p, q;
};

// A matrix, or whole rows of one, in a launch.
struct CodedMatrix {
  compress::MatrixShape shape;
  std::shared_ptr<Factors> factors;
  std::uint64_t turn = 0;  // how many launches had these factors before
};

// Reactor thread.
class FactorTable {
 public:
  explicit FactorTable(std::uint64_t key = 0) : key_(key) {}

  // `first`: the matrix's first element in a slot.
  [[nodiscard]] CodedMatrix turn_of(std::size_t first, const compress::MatrixShape& shape, std::uint64_t slot,
                                    std::uint64_t generation);
  [[nodiscard]] std::size_t size() const { return known_.size(); }

 private:
  using Place = std::pair<std::uint64_t, std::size_t>;  // slot, first element

  void forget(const Place& place, std::size_t elements);

  std::uint64_t key_;
  std::map<Place, CodedMatrix> known_;  // none overlaps another; `turn`: the next one
};

}  // namespace deft::daemon
