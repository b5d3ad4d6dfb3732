#include "bench/compress/emulated_matrix.h"

#include <algorithm>
#include <utility>

#include "core/link/work_request.h"

namespace deft {
namespace {

// What a link does: the sum is made once, node after node, and all nodes have its bits.
void all_reduce(const std::vector<link::WorkRequest>& requests) {
  const std::size_t count = requests.front().count;
  const auto of = [](const link::WorkRequest& request) { return reinterpret_cast<float*>(request.data); };
  std::vector<float> sum(of(requests.front()), of(requests.front()) + count);
  for (std::size_t node = 1; node < requests.size(); ++node)
    for (std::size_t i = 0; i < count; ++i) sum[i] += of(requests[node])[i];
  for (const link::WorkRequest& request : requests) std::ranges::copy(sum, of(request));
}

}  // namespace

EmulatedMatrix::EmulatedMatrix(std::shared_ptr<const compress::Codec> codec, const Place& place)
    : codec_(std::move(codec)), place_(place) {
  for (std::size_t node = 0; node < place.nodes; ++node)
    nodes_.push_back(std::make_unique<Node>(place.job, place.shape.elements()));
}

void EmulatedMatrix::begin(std::size_t node, const float* values, std::uint64_t generation) {
  Node& at = *nodes_[node];
  const std::size_t elements = place_.shape.elements();
  std::copy_n(values, elements, at.values.begin());
  auto codings = std::make_shared<daemon::Codings>();
  codings->residuals = at.residuals;
  codings->coded.push_back({codec_, {{0, elements}}, {at.factors.turn_of(place_.first, place_.shape, 0, generation)}});
  const daemon::Coding& coding = codings->coded.front();
  const daemon::NodeOfAll place{static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(place_.nodes)};
  at.piece = daemon::low_rank_piece({codings, at.values, place}, coding, at.buffers);
}

std::size_t EmulatedMatrix::sum(const float* const* values, std::span<float> sum, std::uint64_t generation) {
  if (!place_.shape.saves()) {
    std::ranges::fill(sum, 0.0F);
    for (std::size_t node = 0; node < place_.nodes; ++node)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[node][i];
    return sum.size_bytes();
  }
  std::vector<link::WorkRequest> requests;
  for (std::size_t node = 0; node < place_.nodes; ++node) {
    begin(node, values[node], generation);
    daemon::CodedPiece& piece = *nodes_[node]->piece;
    if (!piece.encode()) return 0;
    piece.keep_own();
    requests.push_back(piece.request());
  }
  all_reduce(requests);
  if (nodes_.front()->piece->has_second_request()) {
    for (std::size_t node = 0; node < place_.nodes; ++node) {
      nodes_[node]->piece->encode_second(false);
      requests[node] = nodes_[node]->piece->second_request();
    }
    all_reduce(requests);
  }
  const std::size_t bytes = nodes_.front()->piece->brought().size();
  for (const auto& node : nodes_) {
    if (!node->piece->decode(true)) return 0;
    node->piece.reset();
  }
  std::ranges::copy(nodes_.front()->values, sum.begin());
  return bytes;
}

std::vector<float> EmulatedMatrix::residual(std::size_t node) {
  const auto use = nodes_[node]->residuals->use(0, place_.shape.elements());
  return {use.values().begin(), use.values().end()};
}

}  // namespace deft
