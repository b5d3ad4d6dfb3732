#include "core/link/encryption/cipher.h"

#include <sodium.h>

#include <cstring>

namespace deft::link {
namespace {

constexpr std::size_t kNonceBytes = 12;
static_assert(kNonceBytes == crypto_aead_aes256gcm_NPUBBYTES &&
              kNonceBytes == crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
static_assert(kProofBytes == crypto_aead_aes256gcm_ABYTES && kProofBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
constexpr unsigned char kNextKey[] = "the next key";

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

}  // namespace

bool has_aes() { return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available() == 1; }

TrafficKey::~TrafficKey() { sodium_memzero(bytes.data(), bytes.size()); }

struct Cipher::State {
  explicit State(const TrafficKey& first) : key(first) { expand(); }
  ~State() { sodium_memzero(&aes, sizeof aes); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void expand() {
    if (key.kind == CipherKind::kAes256Gcm) crypto_aead_aes256gcm_beforenm(&aes, raw(key.bytes.data()));
  }

  // The nonce of the next record; changes the key if its time has come.
  const unsigned char* next() {
    if (records != 0 && records % kRecordsPerKey == 0) {
      TrafficKey following = key;
      crypto_generichash(raw(following.bytes.data()), following.bytes.size(), kNextKey, sizeof kNextKey,
                         raw(key.bytes.data()), key.bytes.size());
      key = following;
      expand();
    }
    std::memcpy(nonce, &records, sizeof records);
    ++records;
    return nonce;
  }

  TrafficKey key;
  crypto_aead_aes256gcm_state aes{};
  std::uint64_t records = 0;  // so far
  unsigned char nonce[kNonceBytes] = {};
};

Cipher::Cipher(const TrafficKey& key) : state_(std::make_unique<State>(key)) {}
Cipher::~Cipher() = default;
Cipher::Cipher(Cipher&&) noexcept = default;
Cipher& Cipher::operator=(Cipher&&) noexcept = default;

void Cipher::seal(std::span<const std::byte> header, std::span<std::byte> text,
                  std::span<std::byte, kProofBytes> proof) {
  const unsigned char* const nonce = state_->next();
  unsigned char* const data = raw(text.data());
  if (state_->key.kind == CipherKind::kAes256Gcm)
    crypto_aead_aes256gcm_encrypt_detached_afternm(data, raw(proof.data()), nullptr, data, text.size(),
                                                   raw(header.data()), header.size(), nullptr, nonce, &state_->aes);
  else
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(data, raw(proof.data()), nullptr, data, text.size(),
                                                       raw(header.data()), header.size(), nullptr, nonce,
                                                       raw(state_->key.bytes.data()));
}

bool Cipher::open(std::span<const std::byte> header, std::span<std::byte> text,
                  std::span<const std::byte, kProofBytes> proof) {
  const unsigned char* const nonce = state_->next();
  unsigned char* const data = raw(text.data());
  if (state_->key.kind == CipherKind::kAes256Gcm)
    return crypto_aead_aes256gcm_decrypt_detached_afternm(data, nullptr, data, text.size(), raw(proof.data()),
                                                          raw(header.data()), header.size(), nonce, &state_->aes) == 0;
  return crypto_aead_chacha20poly1305_ietf_decrypt_detached(data, nullptr, data, text.size(), raw(proof.data()),
                                                            raw(header.data()), header.size(), nonce,
                                                            raw(state_->key.bytes.data())) == 0;
}

}  // namespace deft::link
