#include "daemon/channel/coded_transfer.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace deft::daemon {
namespace {

using link::Range;
using link::WorkRequest;

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

CodedTransfer::CodedTransfer(const std::shared_ptr<const Codings>& codings, std::span<float> values, NodeOfAll place,
                             BufferPool& buffers, CodecLoss* loss)
    : codings_(codings), values_(values) {
  const CodedWork work{codings, values, place, loss};
  for (const Coding& coding : codings->coded) pieces_.push_back(piece_of(work, coding, buffers));
  if (!codings->exact.empty() || !codings->settled.empty()) pieces_.push_back(exact_piece(work, buffers));
}

CodedTransfer::~CodedTransfer() = default;

Result<void> CodedTransfer::encode() {
  for (const auto& piece : pieces_)
    if (auto ok = piece->encode(); !ok) return ok;
  return {};
}

std::size_t CodedTransfer::wire_bytes() const {
  std::size_t bytes = 0;
  for (const auto& piece : pieces_) bytes += piece->brought().size();
  return bytes;
}

void CodedTransfer::keep(ReplayBuffer& kept) {
  kept.bytes = wire_bytes();
  kept.data = std::make_unique_for_overwrite<std::byte[]>(kept.bytes);
  std::byte* at = kept.data.get();
  for (const auto& piece : pieces_) {
    const std::span<const std::byte> own = piece->brought();
    piece->sent({at, own.size()});
    at = std::ranges::copy(own, at).out;
  }
  kept.filled = true;
  kept_ = &kept;
}

void CodedTransfer::keep_own() {
  for (const auto& piece : pieces_) piece->keep_own();
}

Result<void> CodedTransfer::restore(ReplayBuffer& kept) {
  if (kept.bytes != wire_bytes())
    return fail(ErrorKind::kInternal,
                "a replay of " + std::to_string(kept.bytes) + " bytes, in place of " + std::to_string(wire_bytes()));
  const std::byte* at = kept.data.get();
  for (const auto& piece : pieces_) {
    const std::span<std::byte> own = piece->brought();
    std::memcpy(own.data(), at, own.size());
    piece->sent({at, own.size()});
    at += own.size();
  }
  kept_ = &kept;
  return {};
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
  std::byte* end = kept_ != nullptr ? kept_->data.get() : nullptr;
  for (const auto& piece : pieces_) {
    if (end != nullptr) end += piece->brought().size();
    if (!piece->has_second_request()) continue;
    piece->encode_second(is_restored);
    const std::span<const std::byte> second = piece->brought_second();
    if (end != nullptr && !is_restored) std::ranges::copy(second, end - second.size());
    requests.push_back(piece->second_request());
  }
  if (kept_ != nullptr) kept_->has_second = true;
  made_second_ = true;
  return requests;
}

Result<void> CodedTransfer::decode(bool first_time) {
  for (const auto& piece : pieces_)
    if (auto ok = piece->decode(first_time); !ok) return ok;
  for (const Range& range : codings_->padding) std::ranges::fill(values_.subspan(range.first, range.count), 0.0F);
  return {};
}

}  // namespace deft::daemon
