#include "core/link/encryption/records.h"

#include <algorithm>

namespace deft::link {
namespace {

enum Kind : std::uint8_t { kText = 1, kEnd = 2 };

void write_header(std::byte* at, std::size_t text, std::uint8_t kind) {
  for (int i = 0; i < 3; ++i) at[i] = static_cast<std::byte>(text >> (8 * i));
  at[3] = static_cast<std::byte>(kind);
}

std::size_t length_in(const std::byte* header) {
  std::size_t length = 0;
  for (int i = 0; i < 3; ++i) length |= std::to_integer<std::size_t>(header[i]) << (8 * i);
  return length;
}

// A writer makes no empty texts, and no text in an end.
bool is_possible(std::size_t length, std::uint8_t kind) {
  return kind == kText ? length > 0 && length <= kRecordTextBytes : kind == kEnd && length == 0;
}

}  // namespace

RecordWriter::RecordWriter(const TrafficKey& key)
    : cipher_(key), buffer_(kRecordsAtOnce * kRecordBytes + kRecordHeaderBytes + kProofBytes) {
  for (std::size_t i = 0; i < kRecordsAtOnce; ++i)
    places_.push_back({&buffer_[i * kRecordBytes + kRecordHeaderBytes], kRecordTextBytes});
}

void RecordWriter::seal_at(std::size_t place, std::size_t text, std::uint8_t kind) {
  std::byte* const record = &buffer_[place];
  write_header(record, text, kind);
  cipher_.seal({record, kRecordHeaderBytes}, {record + kRecordHeaderBytes, text},
               std::span<std::byte, kProofBytes>(record + kRecordHeaderBytes + text, kProofBytes));
  end_ = place + kRecordHeaderBytes + text + kProofBytes;
}

void RecordWriter::seal(std::size_t bytes) {
  for (std::size_t place = 0; bytes > 0; place += kRecordBytes) {
    const std::size_t text = std::min(bytes, kRecordTextBytes);
    seal_at(place, text, kText);
    bytes -= text;
  }
}

void RecordWriter::seal_end() { seal_at(end_, 0, kEnd); }

std::span<const std::byte> RecordWriter::pending() const { return {buffer_.data() + begin_, end_ - begin_}; }

void RecordWriter::sent(std::size_t bytes) {
  begin_ += bytes;
  if (begin_ == end_) begin_ = end_ = 0;
}

RecordReader::RecordReader(const TrafficKey& key) : cipher_(key), buffer_(kRecordsAtOnce * kRecordBytes) {}

std::span<std::byte> RecordReader::space() {
  std::copy(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), buffer_.begin() + static_cast<std::ptrdiff_t>(end_),
            buffer_.begin());
  end_ -= begin_;
  begin_ = 0;
  return std::span(buffer_).subspan(end_);
}

Result<std::size_t> RecordReader::open_next() {
  const std::size_t there = end_ - begin_;
  if (ended_ && there > 0) return fail(ErrorKind::kViolation, "bytes came after its end");
  if (there < kRecordHeaderBytes) return 0;
  std::byte* const record = &buffer_[begin_];
  const std::size_t length = length_in(record);
  const auto kind = std::to_integer<std::uint8_t>(record[3]);
  if (!is_possible(length, kind)) return fail(ErrorKind::kViolation, "what came is no record");
  const std::size_t whole = kRecordHeaderBytes + length + kProofBytes;
  if (there < whole) return 0;
  const std::span<std::byte> text(record + kRecordHeaderBytes, length);
  if (!cipher_.open({record, kRecordHeaderBytes}, text,
                    std::span<const std::byte, kProofBytes>(record + kRecordHeaderBytes + length, kProofBytes)))
    return fail(ErrorKind::kViolation, "a record was forged, repeated or left out");
  if (kind == kEnd)
    ended_ = true;
  else
    texts_.push_back({text.data(), text.size()});
  return whole;
}

Result<void> RecordReader::add(std::size_t bytes) {
  end_ += bytes;
  while (true) {
    const auto opened = open_next();
    if (!opened) return tl::unexpected(opened.error());
    if (*opened == 0) return {};
    begin_ += *opened;
  }
}

std::span<const iovec> RecordReader::texts() const { return std::span(texts_).subspan(first_text_); }

void RecordReader::taken(std::size_t bytes) {
  while (bytes > 0) {
    iovec& text = texts_[first_text_];
    const std::size_t part = std::min(bytes, text.iov_len);
    text = {static_cast<std::byte*>(text.iov_base) + part, text.iov_len - part};
    bytes -= part;
    if (text.iov_len == 0) ++first_text_;
  }
  if (first_text_ < texts_.size()) return;
  texts_.clear();
  first_text_ = 0;
}

}  // namespace deft::link
