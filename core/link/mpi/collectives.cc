#include "core/link/mpi/collectives.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "core/reduce/reduce.h"

namespace deft::link::mpi_backend {
namespace {

constexpr std::size_t kExchangeBytes = 64 << 10;  // what a node sends at most when everyone gets everything
constexpr std::size_t kGranuleBytes = 64;         // slices begin on cache lines of the part

constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

template <typename Words>
std::uint64_t hash_of(std::uint64_t operation, const Words& words) {
  std::uint64_t hash = operation;
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return hash;
}

std::size_t piece_bytes(std::size_t bytes, std::size_t slot, std::size_t piece) {
  return bytes <= piece * slot ? 0 : std::min(slot, bytes - piece * slot);
}

}  // namespace

// Visits the peers beginning with the next node, so that not all nodes send to the same one at once; ends at a failure.
template <typename Visit>
bool Collectives::each_peer(Visit visit) {
  for (std::uint32_t step = 1; step < carrier_.nodes(); ++step) {
    if (!visit((carrier_.node() + step) % carrier_.nodes())) return false;
  }
  return true;
}

// An all-reduce never gets more than kAhead rounds ahead of its peers.
bool Collectives::send(std::uint32_t peer, const std::byte* data, std::size_t bytes) {
  return carrier_.send(peer, data, bytes, Carrier::Pace::kFree);
}

bool Collectives::all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  work_ = Work{.data = data, .count = count, .element = model::dtype_bytes(dtype), .dtype = dtype, .op = op};
  const std::initializer_list<std::uint64_t> words = {count, std::uint64_t(dtype), std::uint64_t(op)};
  carrier_.begin(hash_of(++operations_, words));
  const std::size_t bytes = count * work_.element;
  const bool is_small = bytes * (carrier_.nodes() - 1) <= kExchangeBytes && bytes <= carrier_.slot_bytes();
  return (is_small ? exchange_whole() : scatter_and_gather()) && carrier_.flush();
}

// Everyone sends everything to everyone, and everyone reduces: one latency.
bool Collectives::exchange_whole() {
  const std::size_t bytes = work_.count * work_.element;
  return each_peer([&](std::uint32_t peer) { return carrier_.expect(peer, bytes); }) &&
         each_peer([&](std::uint32_t peer) { return send(peer, work_.data, bytes); }) && reduce_range({0, work_.count});
}

bool Collectives::scatter_and_gather() {
  const std::size_t granule = kGranuleBytes / work_.element;
  work_.slice = ceil_div(ceil_div(work_.count, carrier_.nodes()), granule) * granule;
  work_.rounds = ceil_div(work_.slice, carrier_.slot_bytes() / work_.element);
  work_.segment = ceil_div(ceil_div(work_.slice, work_.rounds), granule) * granule;
  std::ranges::fill(cursors_, 0);
  if (!expect_ahead()) return false;
  for (std::size_t round = 0; round < std::min(kAhead, work_.rounds); ++round) {
    if (!send_segments(round)) return false;
  }
  for (std::size_t round = 0; round < work_.rounds + kAhead; ++round) {
    // In the order of the stream: a result comes before the segment of kAhead rounds later.
    if (round >= kAhead && !receive_results(round - kAhead)) return false;
    if (round >= work_.rounds) continue;
    const Range mine = segment_of(carrier_.node(), round);
    if (mine.count > 0 && !(reduce_range(mine) && send_results(round))) return false;
    if (!expect_ahead()) return false;
    if (round + kAhead < work_.rounds && !send_segments(round + kAhead)) return false;
  }
  return true;
}

Collectives::Item Collectives::item(std::size_t index) {
  if (index < kAhead) return {false, index};
  const std::size_t turn = index - kAhead;
  return {turn % 2 == 0, turn / 2 + (turn % 2 == 0 ? 0 : kAhead)};
}

// Tells MPI of the next messages of each peer, as far as there are slots for them.
bool Collectives::expect_ahead() {
  const std::size_t items = kAhead + 2 * work_.rounds;
  return each_peer([&](std::uint32_t peer) {
    for (std::size_t& cursor = cursors_[peer]; cursor < items && carrier_.can_expect(peer); ++cursor) {
      const Item next = item(cursor);
      const std::size_t count = segment_of(next.is_result ? peer : carrier_.node(), next.round).count;
      if (count > 0 && !carrier_.expect(peer, count * work_.element)) return false;
    }
    return true;
  });
}

bool Collectives::send_segments(std::size_t round) {
  return each_peer([&](std::uint32_t peer) {
    const Range range = segment_of(peer, round);
    return range.count == 0 || send(peer, work_.data + range.first * work_.element, range.count * work_.element);
  });
}

bool Collectives::send_results(std::size_t round) {
  const Range range = segment_of(carrier_.node(), round);
  return each_peer([&](std::uint32_t peer) {
    return send(peer, work_.data + range.first * work_.element, range.count * work_.element);
  });
}

// Reduces this node's elements `mine` with what the peers sent for them.
bool Collectives::reduce_range(Range mine) {
  std::byte* const own = work_.data + mine.first * work_.element;
  inputs_.assign(carrier_.nodes(), own);
  const bool received = each_peer([&](std::uint32_t peer) {
    inputs_[peer] = carrier_.receive(peer);
    return inputs_[peer] != nullptr;
  });
  if (received) reduce::reduce(own, inputs_, mine.count, work_.dtype, work_.op);
  return received;
}

bool Collectives::receive_results(std::size_t round) {
  return each_peer([&](std::uint32_t peer) {
           const Range range = segment_of(peer, round);
           if (range.count == 0) return true;
           const std::byte* result = carrier_.receive(peer);
           if (result == nullptr) return false;
           std::memcpy(work_.data + range.first * work_.element, result, range.count * work_.element);
           return true;
         }) &&
         expect_ahead();
}

Collectives::Range Collectives::segment_of(std::uint32_t owner, std::size_t round) const {
  const std::size_t slice_end = std::min((owner + 1) * work_.slice, work_.count);
  const std::size_t first = std::min(owner * work_.slice + round * work_.segment, slice_end);
  return {first, std::min(work_.segment, slice_end - first)};
}

bool Collectives::share_blocks(std::byte* data, std::span<const std::size_t> bytes) {
  carrier_.begin(hash_of(++operations_, bytes));
  const std::size_t pieces = ceil_div(std::ranges::max(bytes), carrier_.slot_bytes());
  std::vector<std::byte*> blocks(bytes.size(), data);
  for (std::size_t node = 1; node < bytes.size(); ++node) blocks[node] = blocks[node - 1] + bytes[node - 1];
  std::ranges::fill(cursors_, 0);
  for (std::size_t round = 0; round < pieces + kAhead; ++round) {
    if (!expect_pieces(bytes)) return false;
    if (round < pieces && !send_piece(blocks[carrier_.node()], bytes[carrier_.node()], round)) return false;
    if (round < kAhead) continue;
    const auto receive = [&](std::uint32_t peer) {
      return receive_piece(peer, blocks[peer], bytes[peer], round - kAhead);
    };
    if (!each_peer(receive)) return false;
  }
  return carrier_.flush();
}

bool Collectives::expect_pieces(std::span<const std::size_t> bytes) {
  return each_peer([&](std::uint32_t peer) {
    for (std::size_t& cursor = cursors_[peer]; carrier_.can_expect(peer); ++cursor) {
      const std::size_t length = piece_bytes(bytes[peer], carrier_.slot_bytes(), cursor);
      if (length == 0) break;
      if (!carrier_.expect(peer, length)) return false;
    }
    return true;
  });
}

bool Collectives::receive_piece(std::uint32_t peer, std::byte* block, std::size_t bytes, std::size_t piece) {
  const std::size_t length = piece_bytes(bytes, carrier_.slot_bytes(), piece);
  if (length == 0) return true;
  const std::byte* received = carrier_.receive(peer);
  if (received == nullptr) return false;
  std::memcpy(block + piece * carrier_.slot_bytes(), received, length);
  return true;
}

bool Collectives::send_piece(const std::byte* block, std::size_t bytes, std::size_t piece) {
  const std::size_t length = piece_bytes(bytes, carrier_.slot_bytes(), piece);
  return length == 0 || each_peer([&](std::uint32_t peer) {
           // Whoever only sends has nothing else to wait for, and would fill MPI's buffers with all of its block.
           return carrier_.send(peer, block + piece * carrier_.slot_bytes(), length, Carrier::Pace::kOfReceiver);
         });
}

}  // namespace deft::link::mpi_backend
