#include "core/client/staging_buffers.h"

#include <algorithm>

#include "core/ipc/wire.h"
#include "core/model/buckets.h"

namespace deft::client {
namespace {

constexpr std::uint64_t kAlignBytes = 64;
constexpr std::uint64_t kSmallestBuffer = std::uint64_t{1} << 20;
constexpr std::uint64_t kLargestStep = std::uint64_t{64} << 20;
constexpr std::uint64_t kLargestBuffer = std::uint64_t{1} << 42;

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

Piece StagingBuffers::cut(std::uint32_t number, Buffer& buffer, std::uint64_t bytes) {
  const std::uint64_t offset = buffer.free.take(bytes);
  if (offset == FreeRanges::kNone) return {};
  return {number, offset, bytes, buffer.memory.data() + offset};
}

Result<Piece> StagingBuffers::take(std::uint64_t bytes) {
  if (bytes > kLargestBuffer)
    return fail(ErrorKind::kInvalid, "a collective over " + std::to_string(bytes) + " bytes is too large");
  bytes = model::round_up(std::max<std::uint64_t>(bytes, 1), kAlignBytes);
  const std::lock_guard lock(mutex_);  // also while the daemon makes a buffer, so that not every thread asks for one
  for (auto& [number, buffer] : buffers_)
    if (const Piece piece = cut(number, buffer, bytes); piece.data != nullptr) return piece;
  // A new buffer is as large as all others together. So there are few buffers, whatever comes.
  const std::uint64_t size = std::max({bytes, kSmallestBuffer, std::min(total_bytes_, kLargestStep)});
  const std::uint32_t number = session_.requests().next_number();
  auto memory = make(number, size);
  if (!memory) return tl::unexpected(memory.error());
  total_bytes_ += size;
  auto& buffer = buffers_.emplace(number, Buffer{std::move(*memory), FreeRanges(size)}).first->second;
  return cut(number, buffer, bytes);
}

Result<shm::Segment> StagingBuffers::make(std::uint32_t number, std::uint64_t bytes) {
  ipc::StagingBuffer request;
  request.buffer = number;
  request.bytes = bytes;
  session_.requests().expect(number);
  const auto sent = session_.connection().send(ipc::encode(request, ipc::MessageKind::kStagingBuffer));
  auto packet = sent ? session_.requests().answer(ipc::MessageKind::kStagingBufferMade, number)
                     : Result<ipc::Packet>(tl::unexpected(sent.error()));
  session_.requests().forget(number);
  if (!packet) return tl::unexpected(packet.error());
  if (packet->descriptors.size() != 1) return fail(ErrorKind::kViolation, "the daemon passed no staging buffer");
  return shm::Segment::map(std::move(packet->descriptors[0]), bytes);
}

Result<std::byte*> StagingBuffers::find(std::uint32_t number, std::uint64_t offset, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto buffer = buffers_.find(number);
  if (buffer != buffers_.end()) {
    const shm::Segment& memory = buffer->second.memory;
    if (offset <= memory.bytes() && bytes <= memory.bytes() - offset) return memory.data() + offset;
  }
  return fail(ErrorKind::kViolation, "the daemon started a collective outside of this worker's staging buffers");
}

void StagingBuffers::give_back(const Piece& piece) {
  ipc::StagingBuffer request;
  {
    const std::lock_guard lock(mutex_);
    const auto buffer = buffers_.find(piece.buffer);
    if (buffer == buffers_.end()) return;
    buffer->second.free.give_back(piece.offset, piece.bytes);
    if (total_bytes_ <= cap_bytes_ || !buffer->second.free.all_free()) return;
    request.buffer = piece.buffer;
    request.bytes = buffer->second.memory.bytes();
    total_bytes_ -= request.bytes;
    buffers_.erase(buffer);
  }
  static_cast<void>(session_.connection().send(ipc::encode(request, ipc::MessageKind::kFreeStagingBuffer)));
}

}  // namespace deft::client
