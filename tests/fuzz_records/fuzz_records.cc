// Feeds the reader of encrypted records with a stream that libFuzzer edits: sound records of a known text, of which bytes are changed,
// left out or put in. What comes out must be a beginning of that text, and the end must not be believed unless all of it came.
//
// The input: a byte for the sizes of the records, one for the sizes of the pieces in which they come, and edits of four bytes each: where
// (two bytes), what (change, leave out, put in), with which byte.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "core/link/encryption/records.h"
#include "tests/fuzz/reached.h"

namespace {

using Bytes = std::vector<std::byte>;
constexpr std::size_t kTextBytes = 600;

void require(bool holds) {
  if (!holds) std::abort();
}

// A text, or the end.
void count(std::size_t kind) {
  static deft::fuzz::Reached reached("encrypted records that were believed", 2);
  reached.count(kind);
}

Bytes text() {
  Bytes bytes(kTextBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 % 251);
  return bytes;
}

Bytes sound_stream(const deft::link::TrafficKey& key, const Bytes& all, std::size_t record_text) {
  deft::link::RecordWriter writer(key);
  Bytes stream;
  const auto take = [&] {
    stream.insert(stream.end(), writer.pending().begin(), writer.pending().end());
    writer.sent(writer.pending().size());
  };
  for (std::size_t at = 0; at < all.size(); at += record_text) {
    const std::size_t part = std::min(record_text, all.size() - at);
    std::memcpy(writer.places().front().iov_base, &all[at], part);
    writer.seal(part);
    take();
  }
  writer.seal_end();
  take();
  return stream;
}

void edit(Bytes& stream, std::span<const std::uint8_t, 4> edit) {
  if (stream.empty()) return;
  const auto at = stream.begin() + static_cast<std::ptrdiff_t>((edit[0] | edit[1] << 8) % stream.size());
  if (edit[2] % 3 == 0) *at = static_cast<std::byte>(edit[3]);
  if (edit[2] % 3 == 1) stream.erase(at);
  if (edit[2] % 3 == 2) stream.insert(at, static_cast<std::byte>(edit[3]));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::span input(data, size);
  deft::link::TrafficKey key;
  key.bytes.fill(std::byte{42});
  const Bytes all = text();
  Bytes stream = sound_stream(key, all, 1 + input[0]);
  for (std::size_t at = 2; at + 4 <= size && at < 400; at += 4) edit(stream, input.subspan(at).first<4>());

  deft::link::RecordReader reader(key);
  std::span<const std::byte> left = stream;
  std::size_t taken = 0;
  bool sound = true;
  while (!left.empty() && sound) {
    const auto space = reader.space();
    const std::size_t part = std::min({space.size(), left.size(), std::size_t{1} + input[1]});
    std::ranges::copy(left.first(part), space.begin());
    left = left.subspan(part);
    sound = reader.add(part).has_value();
    while (!reader.texts().empty()) {
      const iovec& text_of_record = reader.texts().front();
      require(taken + text_of_record.iov_len <= all.size());
      require(std::memcmp(text_of_record.iov_base, &all[taken], text_of_record.iov_len) == 0);
      taken += text_of_record.iov_len;
      count(0);
      reader.taken(text_of_record.iov_len);
    }
  }
  if (!reader.ended()) return 0;
  require(taken == all.size());
  count(1);
  return 0;
}
