#include "core/link/mpi/blocks.h"

#include <algorithm>
#include <cstring>

namespace deft::link::mpi_backend {

// Visits the peers beginning with the next node, so that not all nodes send to the same one at once; ends at a failure.
template <typename Visit>
bool Blocks::each_peer(Visit visit) {
  for (std::uint32_t step = 1; step < carrier_.nodes(); ++step) {
    if (!visit((carrier_.node() + step) % carrier_.nodes())) return false;
  }
  return true;
}

bool Blocks::share(std::byte* data, std::span<const std::size_t> bytes) {
  tag_ = carrier_.begin(bytes);
  const std::size_t pieces = (std::ranges::max(bytes) + carrier_.slot_bytes() - 1) / carrier_.slot_bytes();
  std::vector<std::byte*> blocks(bytes.size(), data);
  for (std::size_t node = 1; node < bytes.size(); ++node) blocks[node] = blocks[node - 1] + bytes[node - 1];
  cursors_.assign(carrier_.nodes(), 0);
  for (std::size_t round = 0; round < pieces + kAhead; ++round) {
    if (!expect_pieces(bytes)) return false;
    if (round < pieces && !send_piece(blocks[carrier_.node()], bytes[carrier_.node()], round)) return false;
    if (round < kAhead) continue;
    const auto receive = [&](std::uint32_t peer) {
      return receive_piece(peer, blocks[peer], bytes[peer], round - kAhead);
    };
    if (!each_peer(receive)) return false;
  }
  return each_peer([&](std::uint32_t peer) { return carrier_.flush(peer, kStream, carrier_.given(peer, kStream)); });
}

std::size_t Blocks::piece_bytes(std::size_t bytes, std::size_t piece) const {
  const std::size_t slot = carrier_.slot_bytes();
  return bytes <= piece * slot ? 0 : std::min(slot, bytes - piece * slot);
}

bool Blocks::expect_pieces(std::span<const std::size_t> bytes) {
  return each_peer([&](std::uint32_t peer) {
    for (std::size_t& cursor = cursors_[peer]; carrier_.can_expect(peer, kStream); ++cursor) {
      const std::size_t length = piece_bytes(bytes[peer], cursor);
      if (length == 0) break;
      if (!carrier_.expect(peer, kStream, tag_, length)) return false;
    }
    return true;
  });
}

bool Blocks::receive_piece(std::uint32_t peer, std::byte* block, std::size_t bytes, std::size_t piece) {
  const std::size_t length = piece_bytes(bytes, piece);
  if (length == 0) return true;
  const std::byte* received = carrier_.receive(peer, kStream);
  if (received == nullptr) return false;
  std::memcpy(block + piece * carrier_.slot_bytes(), received, length);
  return true;
}

bool Blocks::send_piece(const std::byte* block, std::size_t bytes, std::size_t piece) {
  const std::size_t length = piece_bytes(bytes, piece);
  return length == 0 || each_peer([&](std::uint32_t peer) {
           // Whoever only sends has nothing else to wait for, and would fill MPI's buffers with all of its block.
           return carrier_.send(peer, kStream, tag_, {block + piece * carrier_.slot_bytes(), length},
                                Carrier::Pace::kOfReceiver);
         });
}

}  // namespace deft::link::mpi_backend
