// Keys and records of encrypted connections, without connections.
#include "core/link/encryption/records.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cstring>

#include "core/link/encryption/key_exchange.h"

namespace deft::link {
namespace {

using Bytes = std::vector<std::byte>;

TrafficKey key_of(CipherKind kind, std::uint8_t seed) {
  TrafficKey key;
  key.kind = kind;
  key.bytes.fill(std::byte{seed});
  return key;
}

std::vector<CipherKind> kinds() {
  if (has_aes()) return {CipherKind::kAes256Gcm, CipherKind::kChaCha20Poly1305};
  return {CipherKind::kChaCha20Poly1305};
}

Bytes bytes_of(std::size_t count, std::uint32_t seed) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

// Writes as much of `text` as fits; the records.
Bytes sealed(RecordWriter& writer, std::span<const std::byte>& text) {
  std::size_t written = 0;
  for (const iovec& place : writer.places()) {
    const std::size_t part = std::min(place.iov_len, text.size());
    std::memcpy(place.iov_base, text.data(), part);
    text = text.subspan(part);
    written += part;
  }
  writer.seal(written);
  const auto pending = writer.pending();
  Bytes records(pending.begin(), pending.end());
  writer.sent(records.size());
  return records;
}

// What a reader makes of `wire`, in pieces of `piece` bytes; `taken` bytes of text at a time.
struct Read {
  Bytes text;
  Result<void> result;
  bool ended = false;
};

Read read_all(RecordReader& reader, std::span<const std::byte> wire, std::size_t piece, std::size_t taken) {
  Read read;
  while (!wire.empty() && read.result) {
    const auto space = reader.space();
    const std::size_t part = std::min({piece, space.size(), wire.size()});
    std::ranges::copy(wire.first(part), space.begin());
    wire = wire.subspan(part);
    read.result = reader.add(part);
    while (!reader.texts().empty()) {
      const iovec& text = reader.texts().front();
      const std::size_t some = std::min(taken, text.iov_len);
      const auto* const data = static_cast<const std::byte*>(text.iov_base);
      read.text.insert(read.text.end(), data, data + some);
      reader.taken(some);
    }
  }
  read.ended = reader.ended();
  return read;
}

// All records of `text`, each apart, and the end behind them.
std::vector<Bytes> records_of(const TrafficKey& key, const Bytes& text, std::size_t record_text) {
  RecordWriter writer(key);
  std::vector<Bytes> records;
  for (std::size_t at = 0; at < text.size(); at += record_text) {
    std::span<const std::byte> part = std::span(text).subspan(at, std::min(record_text, text.size() - at));
    records.push_back(sealed(writer, part));
  }
  writer.seal_end();
  const auto end = writer.pending();
  records.emplace_back(end.begin(), end.end());
  return records;
}

Bytes joined(const std::vector<Bytes>& records) {
  Bytes all;
  for (const Bytes& record : records) all.insert(all.end(), record.begin(), record.end());
  return all;
}

RC_GTEST_PROP(Records, GiveBackWhatWasWrittenInAnyPieces, ()) {
  const auto key = key_of(*rc::gen::elementOf(kinds()), 7);
  const Bytes text = bytes_of(*rc::gen::inRange<std::size_t>(0, 400'000), *rc::gen::arbitrary<std::uint32_t>());
  RecordWriter writer(key);
  Bytes wire;
  for (std::span<const std::byte> left = text; !left.empty();) {
    const Bytes records = sealed(writer, left);
    wire.insert(wire.end(), records.begin(), records.end());
  }
  writer.seal_end();
  wire.insert(wire.end(), writer.pending().begin(), writer.pending().end());
  RecordReader reader(key);
  const auto piece = *rc::gen::inRange<std::size_t>(1, 200'000);
  const Read read = read_all(reader, wire, std::max(piece, wire.size() / 1000 + 1), *rc::gen::inRange(1000, 100'000));
  RC_ASSERT(read.result.has_value());
  RC_ASSERT(read.text == text);
  RC_ASSERT(read.ended);
}

// One change of any byte: nothing of that record or of a later one comes out.
RC_GTEST_PROP(Records, AChangedByteIsNoticedBeforeAnyOfItsRecordComesOut, ()) {
  const auto key = key_of(*rc::gen::elementOf(kinds()), 7);
  const auto record_text = *rc::gen::inRange<std::size_t>(1, 3000);
  const Bytes text = bytes_of(*rc::gen::inRange<std::size_t>(1, 10'000), 1);
  std::vector<Bytes> records = records_of(key, text, record_text);
  const auto which = *rc::gen::inRange<std::size_t>(0, records.size());
  const auto where = *rc::gen::inRange<std::size_t>(0, records[which].size());
  records[which][where] ^= static_cast<std::byte>(*rc::gen::inRange(1, 256));
  RecordReader reader(key);
  const Read read = read_all(reader, joined(records), *rc::gen::inRange<std::size_t>(1, 20'000), 100'000);
  // A length that grew waits for bytes that never come: the end of the connection is early then.
  RC_ASSERT(!read.result.has_value() || !read.ended);
  const std::size_t before = std::min(which * record_text, text.size());
  RC_ASSERT(read.text == Bytes(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(before)));
}

RC_GTEST_PROP(Records, NoBytesThatNobodySealedComeOut, (const std::vector<std::uint8_t>& noise)) {
  RecordReader reader(key_of(CipherKind::kChaCha20Poly1305, 7));
  const Read read = read_all(reader, std::as_bytes(std::span(noise)), 50'000, 100'000);
  RC_ASSERT(read.text.empty());
  RC_ASSERT(!read.ended);
}

TEST(Records, AreRefusedIfTheyAreRepeatedSwappedLeftOutOrOfTheOtherDirection) {
  for (const CipherKind kind : kinds()) {
    const Bytes text = bytes_of(500, 3);
    const std::vector<Bytes> sound = records_of(key_of(kind, 7), text, 100);
    std::vector<Bytes> repeated = sound, swapped = sound, left_out = sound;
    repeated.insert(repeated.begin() + 2, sound[1]);
    std::swap(swapped[2], swapped[3]);
    left_out.erase(left_out.begin() + 2);
    for (const auto& wrong : {repeated, swapped, left_out}) {
      RecordReader reader(key_of(kind, 7));
      const Read read = read_all(reader, joined(wrong), 1 << 20, 1 << 20);
      ASSERT_FALSE(read.result);
      EXPECT_EQ(read.result.error().kind, ErrorKind::kViolation);
      EXPECT_EQ(read.text, Bytes(text.begin(), text.begin() + 200));
    }
    RecordReader reader(key_of(kind, 8));
    const Read read = read_all(reader, joined(sound), 1 << 20, 1 << 20);
    EXPECT_FALSE(read.result);
    EXPECT_TRUE(read.text.empty());
  }
}

TEST(Records, NothingMayFollowTheEnd) {
  const auto key = key_of(CipherKind::kChaCha20Poly1305, 7);
  Bytes wire = joined(records_of(key, bytes_of(10, 1), 10));
  wire.push_back(std::byte{0});
  RecordReader reader(key);
  EXPECT_FALSE(read_all(reader, wire, 1 << 20, 1 << 20).result);
}

TEST(Records, OfTheSameTextAreNeverTheSame) {
  const auto records = records_of(key_of(CipherKind::kChaCha20Poly1305, 7), Bytes(1000), 100);
  for (std::size_t i = 1; i < records.size(); ++i) EXPECT_NE(records[i], records[0]);
}

// A key seals only so many records.
TEST(Ciphers, ChangeTheirKeyInTimeAndTogether) {
  for (const CipherKind kind : kinds()) {
    Cipher sends(key_of(kind, 7)), receives(key_of(kind, 7));
    std::byte text{1};
    std::array<std::byte, kProofBytes> proof{};
    std::array<std::byte, kProofBytes> first{};
    for (std::uint64_t i = 0; i <= Cipher::kRecordsPerKey; ++i) {
      text = std::byte{1};
      sends.seal({}, {&text, 1}, proof);
      if (i == 0) first = proof;
      ASSERT_TRUE(receives.open({}, {&text, 1}, proof)) << i;
      ASSERT_EQ(text, std::byte{1});
    }
    EXPECT_NE(proof, first);
  }
}

TEST(Keys, OfBothMembersFitAndDependOnAllThatBothSay) {
  const auto a = KeyPair::make(), b = KeyPair::make(), stranger = KeyPair::make();
  ASSERT_TRUE(a && b && stranger);
  const Role calls{.calls = true, .about = "job 1 0"}, answers{.calls = false, .about = "job 1 0"};
  const auto ours = a->agree(b->public_key(), calls), theirs = b->agree(a->public_key(), answers);
  ASSERT_TRUE(ours && theirs);
  EXPECT_EQ(ours->sends.bytes, theirs->receives.bytes);
  EXPECT_EQ(ours->receives.bytes, theirs->sends.bytes);
  EXPECT_NE(ours->sends.bytes, ours->receives.bytes);
  EXPECT_EQ(ours->says, theirs->hears);
  EXPECT_EQ(ours->hears, theirs->says);
  EXPECT_NE(ours->says, ours->hears);
  EXPECT_EQ(ours->sends.kind, theirs->receives.kind);
  EXPECT_NE(ours->sends.bytes, a->agree(stranger->public_key(), calls)->sends.bytes);
  EXPECT_NE(ours->sends.bytes, a->agree(b->public_key(), {.calls = true, .about = "job 2 0"})->sends.bytes);
}

TEST(Keys, AreTakenFromTextAndNothingElseIs) {
  const auto own = KeyPair::make();
  ASSERT_TRUE(own);
  const std::string text = own->public_key().text();
  const auto read = PublicKey::parse(text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->bytes, own->public_key().bytes);
  EXPECT_EQ(read->has_aes, has_aes());
  for (const std::string& wrong : {std::string(), text.substr(1), text + "0", text.substr(0, text.size() - 1),
                                   "any:" + std::string(64, 'g'), std::string("any:"), std::string(68, 'a')})
    EXPECT_FALSE(PublicKey::parse(wrong)) << wrong;
}

// A public key that gives everybody the same secret.
TEST(Keys, AWeakPublicKeyIsRefused) {
  const auto own = KeyPair::make();
  ASSERT_TRUE(own);
  const auto keys = own->agree(PublicKey{}, {.calls = true, .about = "x"});
  ASSERT_FALSE(keys);
  EXPECT_EQ(keys.error().kind, ErrorKind::kViolation);
}

TEST(Keys, WithoutAesOnOneSideBothTakeTheOtherCipher) {
  const auto own = KeyPair::make(), other = KeyPair::make();
  ASSERT_TRUE(own && other);
  PublicKey key = other->public_key();
  key.has_aes = false;
  EXPECT_EQ(own->agree(key, {.calls = true, .about = "x"})->sends.kind, CipherKind::kChaCha20Poly1305);
}

}  // namespace
}  // namespace deft::link
