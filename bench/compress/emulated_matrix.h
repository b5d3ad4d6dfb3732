// A matrix whose gradients are sent as low-rank factors: n nodes in one process, with the daemon's own code
// (daemon/channel/low_rank_pieces.cc).
//
//   EmulatedMatrix matrix(codec, {.nodes = 2, .shape = compress::matrix_of(dimensions, rank), .job = job, .first = first});
//   const std::size_t bytes = matrix.sum(values_of_nodes, sum, generation);
//
// Launches hold whole matrices, one generation after the other, as in an arena of one slot. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/compress/codec.h"
#include "core/compress/low_rank.h"
#include "daemon/channel/buffer_pool.h"
#include "daemon/channel/coded_piece.h"
#include "daemon/channel/factors.h"
#include "daemon/channel/residuals.h"

namespace deft {

class EmulatedMatrix {
 public:
  struct Place {
    std::size_t nodes = 2;
    compress::MatrixShape shape;
    std::uint64_t job = 0;    // the key of randomness
    std::uint64_t first = 0;  // element of the arena
  };

  EmulatedMatrix(std::shared_ptr<const compress::Codec> codec, const Place& place);

  // Writes the sum that all nodes see to `sum`. `values` has an array of each node. Gives the bytes that one node brings to the
  // network. A matrix whose factors are not smaller travels as it is.
  std::size_t sum(const float* const* values, std::span<float> sum, std::uint64_t generation);
  // What `node` left out so far.
  [[nodiscard]] std::vector<float> residual(std::size_t node);

 private:
  struct Node {
    Node(std::uint64_t job, std::size_t elements)
        : factors(job), residuals(std::make_shared<daemon::Residuals>(elements)), values(elements) {}
    daemon::FactorTable factors;
    std::shared_ptr<daemon::Residuals> residuals;
    std::vector<float> values;
    daemon::BufferPool buffers;
    std::unique_ptr<daemon::CodedPiece> piece;
  };
  void begin(std::size_t node, const float* values, std::uint64_t generation);

  const std::shared_ptr<const compress::Codec> codec_;
  const Place place_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace deft
