// Seals and opens the records of one direction of one connection: AES-256-GCM if both processors have it, else ChaCha20-Poly1305.
//
//   Cipher sender(key), receiver(key);
//   sender.seal(header, text, proof);              // in place; `proof` is written
//   if (!receiver.open(header, text, proof)) ...   // changed, repeated, left out or out of order: not a record that comes next here
//
// The n-th call of seal() fits the n-th call of open(): the number is the nonce, and does not travel. After kRecordsPerKey records both
// sides go on with the next key, which the last one gives: so a key seals less than GCM allows, however long a job runs, and who learns
// a key cannot read earlier records. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace deft::link {

enum class CipherKind : std::uint8_t { kAes256Gcm, kChaCha20Poly1305 };

// True if this processor has AES-256-GCM.
bool has_aes();

inline constexpr std::size_t kProofBytes = 16;

// Wiped when it is destroyed.
struct TrafficKey {
  CipherKind kind = CipherKind::kChaCha20Poly1305;
  std::array<std::byte, 32> bytes{};

  TrafficKey() = default;
  TrafficKey(const TrafficKey&) = default;
  TrafficKey& operator=(const TrafficKey&) = default;
  ~TrafficKey();
};

class Cipher {
 public:
  static constexpr std::uint64_t kRecordsPerKey = 1 << 16;

  explicit Cipher(const TrafficKey& key);
  ~Cipher();
  Cipher(Cipher&&) noexcept;
  Cipher& operator=(Cipher&&) noexcept;
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  // `header` is proved and not hidden.
  void seal(std::span<const std::byte> header, std::span<std::byte> text, std::span<std::byte, kProofBytes> proof);
  // False: somebody has changed the record. Use neither the connection nor `text` any more.
  [[nodiscard]] bool open(std::span<const std::byte> header, std::span<std::byte> text,
                          std::span<const std::byte, kProofBytes> proof);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace deft::link
