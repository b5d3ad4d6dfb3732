#include "core/client/heaps.h"

#include <algorithm>

#include "core/ipc/wire.h"

namespace deft::client {
namespace {

constexpr std::uint64_t kAlignBytes = 64;
constexpr std::uint64_t kSmallestHeap = std::uint64_t{1} << 20;
constexpr std::uint64_t kLargestStep = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargestHeap = std::uint64_t{1} << 42;

}  // namespace

std::uint64_t FreeRanges::take(std::uint64_t bytes) {
  for (auto it = ranges_.begin(); it != ranges_.end(); ++it) {
    const auto [offset, room] = *it;
    if (room < bytes) continue;
    ranges_.erase(it);
    if (room > bytes) ranges_.emplace(offset + bytes, room - bytes);
    return offset;
  }
  return kNone;
}

void FreeRanges::give_back(std::uint64_t offset, std::uint64_t bytes) {
  auto next = ranges_.lower_bound(offset);
  if (next != ranges_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = ranges_.erase(next);
  }
  if (next != ranges_.begin()) {
    auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  ranges_.emplace(offset, bytes);
}

Piece Heaps::cut(std::uint32_t number, Slab& slab, std::uint64_t bytes) {
  const std::uint64_t offset = slab.free.take(bytes);
  if (offset == FreeRanges::kNone) return {};
  return {number, offset, bytes, slab.memory.data() + offset};
}

Result<Piece> Heaps::take(std::uint64_t bytes) {
  if (bytes > kLargestHeap)
    return fail(ErrorKind::kInvalid, "a collective over " + std::to_string(bytes) + " bytes is too large");
  bytes = (std::max<std::uint64_t>(bytes, 1) + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  const std::lock_guard lock(mutex_);  // also while the daemon makes a heap, so that not every thread asks for one
  for (auto& [number, slab] : slabs_)
    if (const Piece piece = cut(number, slab, bytes); piece.data != nullptr) return piece;
  // As much again as there is: few heaps, whatever comes.
  const std::uint64_t size = std::max({bytes, kSmallestHeap, std::min(total_bytes_, kLargestStep)});
  const std::uint32_t number = session_.next_heap();
  auto memory = make(number, size);
  if (!memory) return tl::unexpected(memory.error());
  total_bytes_ += size;
  auto& slab = slabs_.emplace(number, Slab{std::move(*memory), FreeRanges(size)}).first->second;
  return cut(number, slab, bytes);
}

Result<shm::Segment> Heaps::make(std::uint32_t number, std::uint64_t bytes) {
  ipc::Heap request;
  request.heap = number;
  request.bytes = bytes;
  session_.expect(number);
  auto sent = session_.send(ipc::encode(request, ipc::MessageKind::kHeap));
  auto packet =
      sent ? session_.answer(ipc::MessageKind::kHeapMade, number) : Result<ipc::Packet>(tl::unexpected(sent.error()));
  session_.forget(number);
  if (!packet) return tl::unexpected(packet.error());
  if (packet->descriptors.size() != 1) return fail(ErrorKind::kViolation, "the daemon passed no heap");
  return shm::Segment::map(std::move(packet->descriptors[0]), bytes);
}

Result<std::byte*> Heaps::find(std::uint32_t heap, std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto slab = slabs_.find(heap);
  if (slab != slabs_.end() && offset <= slab->second.memory.bytes() && bytes <= slab->second.memory.bytes() - offset)
    return slab->second.memory.data() + offset;
  return fail(ErrorKind::kViolation, "the daemon started a collective outside of this worker's heaps");
}

void Heaps::give_back(const Piece& piece) {
  ipc::Heap request;
  {
    const std::lock_guard lock(mutex_);
    const auto slab = slabs_.find(piece.heap);
    if (slab == slabs_.end()) return;
    slab->second.free.give_back(piece.offset, piece.bytes);
    if (total_bytes_ <= cap_bytes_ || !slab->second.free.all_free()) return;
    request.heap = piece.heap;
    request.bytes = slab->second.memory.bytes();
    total_bytes_ -= request.bytes;
    slabs_.erase(slab);
  }
  static_cast<void>(session_.send(ipc::encode(request, ipc::MessageKind::kFreeHeap)));
}

}  // namespace deft::client
