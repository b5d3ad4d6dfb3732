#include "core/link/encryption/key_exchange.h"

#include <sodium.h>

namespace deft::link {
namespace {

constexpr std::string_view kAes = "aes:", kAny = "any:";

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }

using Seed = std::array<unsigned char, crypto_kx_SESSIONKEYBYTES>;

// `label` names the purpose of the result.
template <typename Bytes>
void derive(Bytes& into, const Seed& seed, std::string_view label, std::string_view about) {
  const std::string message = std::string(label) + '\n' + std::string(about);
  crypto_generichash(raw(into.data()), into.size(), reinterpret_cast<const unsigned char*>(message.data()),
                     message.size(), seed.data(), seed.size());
}

}  // namespace

std::string PublicKey::text() const {
  std::string digits(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(digits.data(), digits.size(), raw(bytes.data()), bytes.size());
  digits.pop_back();
  return std::string(has_aes ? kAes : kAny) + digits;
}

std::optional<PublicKey> PublicKey::parse(std::string_view text) {
  PublicKey key;
  key.has_aes = text.starts_with(kAes);
  if (!key.has_aes && !text.starts_with(kAny)) return std::nullopt;
  const std::string_view digits = text.substr(kAes.size());
  std::size_t length = 0;
  if (digits.size() != 2 * key.bytes.size() ||
      sodium_hex2bin(raw(key.bytes.data()), key.bytes.size(), digits.data(), digits.size(), nullptr, &length,
                     nullptr) != 0 ||
      length != key.bytes.size())
    return std::nullopt;
  return key;
}

Result<KeyPair> KeyPair::make() {
  KeyPair pair;
  if (sodium_init() < 0 || crypto_kx_keypair(raw(pair.public_.bytes.data()), raw(pair.private_.data())) != 0)
    return fail(ErrorKind::kInternal, "libsodium makes no keys");
  pair.public_.has_aes = has_aes();
  return pair;
}

KeyPair::~KeyPair() { sodium_memzero(private_.data(), private_.size()); }

Result<ConnectionKeys> KeyPair::agree(const PublicKey& other, const Role& role) const {
  static_assert(sizeof public_.bytes == crypto_kx_PUBLICKEYBYTES && sizeof private_ == crypto_kx_SECRETKEYBYTES);
  Seed receives{}, sends{};
  const auto exchange = role.calls ? crypto_kx_client_session_keys : crypto_kx_server_session_keys;
  if (exchange(receives.data(), sends.data(), raw(public_.bytes.data()), raw(private_.data()),
               raw(other.bytes.data())) != 0)
    return fail(ErrorKind::kViolation, "a public key that is none");
  ConnectionKeys keys;
  keys.sends.kind = keys.receives.kind =
      public_.has_aes && other.has_aes ? CipherKind::kAes256Gcm : CipherKind::kChaCha20Poly1305;
  derive(keys.sends.bytes, sends, "traffic", role.about);
  derive(keys.receives.bytes, receives, "traffic", role.about);
  derive(keys.says, sends, "greeting", role.about);
  derive(keys.hears, receives, "greeting", role.about);
  sodium_memzero(sends.data(), sends.size());
  sodium_memzero(receives.data(), receives.size());
  return keys;
}

}  // namespace deft::link
