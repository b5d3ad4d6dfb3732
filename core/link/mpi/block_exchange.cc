#include "core/link/mpi/block_exchange.h"

#include <algorithm>
#include <cstring>

#include "core/link/segmented.h"

namespace deft::link::mpi_backend {
namespace {

SegmentMove move_of_piece(const WorkRequest& request, std::uint32_t peer, std::size_t piece, std::size_t bytes,
                          bool is_sent) {
  return {.request = request.id,
          .peer = peer,
          .round = static_cast<std::uint32_t>(piece),
          .bytes = bytes,
          .part = model::SegmentPart::kBlock,
          .is_sent = is_sent};
}

}  // namespace

template <typename Visit>
bool BlockExchange::each_peer(Visit visit) {
  return link::each_peer(transport_.node(), transport_.nodes(), visit);
}

bool BlockExchange::share(const WorkRequest& request, std::span<const std::size_t> bytes) {
  tag_ = transport_.begin(bytes);
  const std::size_t pieces = (std::ranges::max(bytes) + transport_.slot_bytes() - 1) / transport_.slot_bytes();
  std::vector<Block> blocks;
  std::byte* data = request.data;
  for (const std::size_t size : bytes) blocks.push_back(Block{data, size}), data += size;
  cursors_.assign(transport_.nodes(), 0);
  for (std::size_t round = 0; round < pieces + kAhead; ++round) {
    if (!expect_pieces(bytes)) return false;
    if (round < pieces && !send_piece(request, blocks[transport_.node()], round)) return false;
    if (round < kAhead) continue;
    const auto receive = [&](std::uint32_t peer) { return receive_piece(request, peer, blocks[peer], round - kAhead); };
    if (!each_peer(receive)) return false;
  }
  return each_peer(
      [&](std::uint32_t peer) { return transport_.flush(peer, kStream, transport_.given(peer, kStream)); });
}

std::size_t BlockExchange::piece_bytes(std::size_t bytes, std::size_t piece) const {
  const std::size_t slot = transport_.slot_bytes();
  return bytes <= piece * slot ? 0 : std::min(slot, bytes - piece * slot);
}

bool BlockExchange::expect_pieces(std::span<const std::size_t> bytes) {
  return each_peer([&](std::uint32_t peer) {
    for (std::size_t& cursor = cursors_[peer]; transport_.can_expect(peer, kStream); ++cursor) {
      const std::size_t length = piece_bytes(bytes[peer], cursor);
      if (length == 0) break;
      if (!transport_.expect(peer, kStream, tag_, length)) return false;
    }
    return true;
  });
}

bool BlockExchange::receive_piece(const WorkRequest& request, std::uint32_t peer, const Block& block,
                                  std::size_t piece) {
  const std::size_t length = piece_bytes(block.bytes, piece);
  if (length == 0) return true;
  const MoveTimer timer(request.observer.get());
  const std::byte* received = transport_.receive(peer, kStream);
  if (received == nullptr) return false;
  timer.tell(move_of_piece(request, peer, piece, length, false));
  std::memcpy(block.data + piece * transport_.slot_bytes(), received, length);
  return true;
}

bool BlockExchange::send_piece(const WorkRequest& request, const Block& block, std::size_t piece) {
  const std::size_t length = piece_bytes(block.bytes, piece);
  return length == 0 || each_peer([&](std::uint32_t peer) {
           const MoveTimer timer(request.observer.get());
           // Whoever only sends has nothing else to wait for, and would fill MPI's buffers with all of its block.
           if (!transport_.send(peer, kStream, tag_, {block.data + piece * transport_.slot_bytes(), length},
                                Transport::Pace::kOfReceiver))
             return false;
           timer.tell(move_of_piece(request, peer, piece, length, true));
           return true;
         });
}

}  // namespace deft::link::mpi_backend
