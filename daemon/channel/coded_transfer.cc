#include "daemon/channel/coded_transfer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "core/compress/encoded_sum.h"
#include "core/compress/registry.h"

namespace deft::daemon {
namespace {

using link::Range;
using link::WorkRequest;

constexpr std::size_t kChunk = 4096;  // elements that are rounded at once: they stay in the cache

std::size_t elements_in(const Codings& codings, std::span<const std::byte> arena) {
  return arena.size() / model::dtype_bytes(codings.dtype);
}

std::vector<std::byte> wide_memory_for(const Codings& codings, std::size_t arena_bytes, BufferPool& buffers) {
  if (!model::is_half(codings.dtype)) return {};
  return buffers.take(arena_bytes / model::dtype_bytes(codings.dtype) * sizeof(float));
}

std::span<float> floats_in(std::span<std::byte> memory, std::size_t elements) {
  return {reinterpret_cast<float*>(memory.data()), elements};
}

// Not by std::ranges::copy, which libstdc++ 12 does byte by byte if the source is const. Nothing if the bytes are there already.
void copy_bytes(std::span<const std::byte> from, std::byte* to) {
  if (!from.empty() && from.data() != to) std::memcpy(to, from.data(), from.size());
}

std::unique_ptr<CodedPiece> piece_of(const CodedWork& work, const Coding& coding, BufferPool& buffers) {
  switch (coding.codec->traits().law) {
    case compress::Law::kSparse: return sparse_piece(work, coding, buffers);
    case compress::Law::kLowRank: return low_rank_piece(work, coding, buffers);
    case compress::Law::kRequantised:
    case compress::Law::kVoted: break;
  }
  return requantised_piece(work, coding, buffers);
}

}  // namespace

CodedTransfer::CodedTransfer(const std::shared_ptr<const Codings>& codings, std::span<std::byte> arena, NodeOfAll place,
                             BufferPool& buffers, CodecLoss* loss)
    : buffers_(buffers),
      wide_memory_(wide_memory_for(*codings, arena.size(), buffers)),
      work_{codings, floats_in(wide_memory_.empty() ? arena : std::span(wide_memory_), elements_in(*codings, arena)),
            place, loss, arena} {
  for (const Coding& coding : codings->coded) pieces_.push_back(piece_of(work_, coding, buffers));
  if (!codings->exact.empty() || !codings->settled.empty()) pieces_.push_back(exact_piece(work_, buffers));
}

CodedTransfer::~CodedTransfer() { buffers_.give_back(std::move(wide_memory_)); }

Result<void> CodedTransfer::widen() {
  const compress::Codec* const half = compress::codec_of(work_.codings->dtype);
  if (half == nullptr) return {};
  return half->decode(work_.codings->slice, work_.arena, work_.values);
}

Result<void> CodedTransfer::round(bool first_time) {
  if (wide_memory_.empty()) return {};
  for (const Coding& coding : work_.codings->coded)
    for (const Range& range : coding.ranges)
      if (auto ok = round_range(range, first_time && work_.has_feedback(*coding.codec)); !ok) return ok;
  return {};
}

// Which node keeps the rest depends on the place in the arena alone, so it is the same however the arena is cut.
Result<void> CodedTransfer::round_range(const Range& range, bool keeps_rest) {
  const compress::Codec& half = *compress::codec_of(work_.codings->dtype);
  std::array<float, kChunk> memory_of_rest{};
  for (std::size_t at = range.first, end = range.first + range.count; at < end;) {
    const compress::Slice slice = work_.slice_at(at);
    const Range chunk{at, std::min<std::size_t>(end - at, kChunk - slice.first % kChunk)};
    at += chunk.count;
    const bool keeps = keeps_rest && slice.first / kChunk % work_.place.nodes == work_.place.node;
    const std::span rest = std::span(memory_of_rest).first(keeps ? chunk.count : 0);
    if (auto ok = compress::encode_sum(half, slice, work_.of(chunk), work_.in_arena(chunk), rest); !ok) return ok;
    if (!keeps) continue;
    const auto use = work_.residuals_of(chunk);
    std::ranges::transform(use.values(), rest, use.values().begin(), std::plus{});
  }
  return {};
}

template <typename Visit>
std::size_t CodedTransfer::for_kept(const Visit& visit) const {
  constexpr std::size_t kPlace = alignof(float);
  std::size_t at = 0;
  for (const auto& piece : pieces_) {
    visit(*piece, at);
    at += (piece->brought_bytes() + kPlace - 1) / kPlace * kPlace;
  }
  return at;
}

std::size_t CodedTransfer::kept_bytes() const {
  return for_kept([](const CodedPiece&, std::size_t) {});
}

void CodedTransfer::bring_into(std::byte* kept) {
  for_kept([kept](CodedPiece& piece, std::size_t at) { piece.bring_into({kept + at, piece.brought_bytes()}); });
}

Result<void> CodedTransfer::encode(ReplayBuffer* room) {
  if (room != nullptr) bring_into(room->make_room(kept_bytes()));
  if (auto ok = widen(); !ok) return ok;
  for (const auto& piece : pieces_)
    if (auto ok = piece->encode(); !ok) return ok;
  return {};
}

std::size_t CodedTransfer::wire_bytes() const {
  std::size_t bytes = 0;
  for (const auto& piece : pieces_) bytes += piece->brought_bytes();
  return bytes;
}

void CodedTransfer::keep(ReplayBuffer& kept) {
  std::byte* const room = kept.make_room(kept_bytes());
  for_kept([room](CodedPiece& piece, std::size_t at) {
    const std::span<const std::byte> own = piece.brought();
    piece.sent({room + at, own.size()});
    copy_bytes(own, room + at);
  });
  kept.filled = true;
  kept.took_residuals = std::ranges::none_of(pieces_, [](const auto& piece) { return piece->is_in_place(); });
  kept_ = &kept;
}

void CodedTransfer::keep_own() {
  for (const auto& piece : pieces_) piece->keep_own();
}

Result<void> CodedTransfer::restore(ReplayBuffer& kept) {
  if (kept.bytes != kept_bytes())
    return fail(ErrorKind::kInternal,
                "a replay of " + std::to_string(kept.bytes) + " bytes, in place of " + std::to_string(kept_bytes()));
  bring_into(kept.data.get());
  for_kept([&kept](CodedPiece& piece, std::size_t at) {
    const std::span<std::byte> own = piece.brought();
    const std::span<const std::byte> copy(kept.data.get() + at, own.size());
    copy_bytes(copy, own.data());
    if (kept.took_residuals) piece.sent(copy);  // else there is nothing to give back
  });
  kept_ = &kept;
  return widen();
}

std::vector<WorkRequest> CodedTransfer::requests() {
  std::vector<WorkRequest> requests;
  for (const auto& piece : pieces_) requests.push_back(piece->request());
  return requests;
}

bool CodedTransfer::has_second_requests() const {
  return !made_second_ && std::ranges::any_of(pieces_, [](const auto& piece) { return piece->has_second_request(); });
}

std::vector<WorkRequest> CodedTransfer::second_requests() {
  const bool is_restored = kept_ != nullptr && kept_->has_second;
  std::vector<WorkRequest> requests;
  for_kept([&](CodedPiece& piece, std::size_t at) {
    if (!piece.has_second_request()) return;
    piece.encode_second(is_restored);
    const std::span<const std::byte> second = piece.brought_second();
    const std::size_t first_bytes = piece.brought_bytes() - second.size();
    if (kept_ != nullptr && !is_restored) copy_bytes(second, kept_->data.get() + at + first_bytes);
    requests.push_back(piece.second_request());
  });
  if (kept_ != nullptr) kept_->has_second = true;
  made_second_ = true;
  return requests;
}

Result<void> CodedTransfer::decode(bool first_time) {
  for (const auto& piece : pieces_)
    if (auto ok = piece->decode(first_time); !ok) return ok;
  if (auto ok = round(first_time); !ok) return ok;
  for (const Range& range : work_.codings->padding) std::ranges::fill(work_.in_arena(range), std::byte{});
  return {};
}

}  // namespace deft::daemon
