// The records that an encrypted connection carries, without the connection.
//
//   RecordWriter writer(key);                                   // one direction of one connection
//   n = readv(plain, writer.places()...);                       // plain text, to where the records will be
//   writer.seal(n);
//   n = send(wire, writer.pending()); writer.sent(n);
//   writer.seal_end();                                          // says that nothing follows, so that nobody can cut off the rest
//
//   RecordReader reader(key);
//   n = recv(wire, reader.space());
//   if (auto ok = reader.add(n); !ok) ...                       // forged; the texts opened before may still be taken
//   n = writev(plain, reader.texts()...); reader.taken(n);
//   if (reader.ended()) ...                                     // the other side has said so
//
// A record: 3 bytes length of the text (little-endian), 1 byte kind, the sealed text (up to 32 KiB), 16 bytes of proof (cipher.h), which
// covers length and kind. The content of a record becomes visible only when all of it has been proved. Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/link/encryption/cipher.h"

namespace deft::link {

inline constexpr std::size_t kRecordHeaderBytes = 4;
inline constexpr std::size_t kRecordTextBytes = 32 << 10;  // at most
inline constexpr std::size_t kRecordBytes = kRecordHeaderBytes + kRecordTextBytes + kProofBytes;
inline constexpr std::size_t kRecordsAtOnce = 4;  // for one call of the kernel

class RecordWriter {
 public:
  explicit RecordWriter(const TrafficKey& key);

  // Only while nothing is pending. They are filled from the first one on.
  [[nodiscard]] std::span<const iovec> places() const { return places_; }
  // The first `bytes` bytes of the places become records.
  void seal(std::size_t bytes);
  void seal_end();

  [[nodiscard]] std::span<const std::byte> pending() const;
  void sent(std::size_t bytes);

 private:
  void seal_at(std::size_t place, std::size_t text, std::uint8_t kind);

  Cipher cipher_;
  std::vector<std::byte> buffer_;
  std::vector<iovec> places_;
  std::size_t begin_ = 0, end_ = 0;  // of the pending bytes
};

class RecordReader {
 public:
  explicit RecordReader(const TrafficKey& key);

  // Only while no text waits; never empty.
  [[nodiscard]] std::span<std::byte> space();
  // So many bytes have come into the space. kViolation at the first record that is not the next one of the other side.
  Result<void> add(std::size_t bytes);

  [[nodiscard]] std::span<const iovec> texts() const;
  void taken(std::size_t bytes);
  [[nodiscard]] bool ended() const { return ended_; }

 private:
  // The next record, if all of it is there; the bytes that it takes, or 0.
  Result<std::size_t> open_next();

  Cipher cipher_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of the bytes that have come and are not opened
  std::vector<iovec> texts_;
  std::size_t first_text_ = 0;  // the texts before it are taken
  bool ended_ = false;
};

}  // namespace deft::link
