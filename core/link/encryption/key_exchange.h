// The keys by which two members of a link encrypt their traffic: X25519, with public keys from the store of their job.
//
//   const auto own = KeyPair::make();                          // fresh for each set of connections
//   publish(own->public_key().text());                         // in the store, which nobody else can write
//   const auto keys = own->agree(*PublicKey::parse(text), {.calls = true, .about = "job/gloo 1 0"});
//
// The private key never leaves the process and is wiped with the KeyPair. So who records the traffic and reads the store later learns
// nothing, and who stands between the members without the store cannot take part: the keys do not depend on what he sends.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/link/encryption/cipher.h"
#include "core/link/secret.h"

namespace deft::link {

struct PublicKey {
  std::array<std::byte, 32> bytes{};
  bool has_aes = false;  // its owner's processor

  // One word: "aes:" or "any:", and the bytes in hexadecimal.
  [[nodiscard]] std::string text() const;
  static std::optional<PublicKey> parse(std::string_view text);
};

struct Role {
  bool calls = false;      // this member calls, and the other one answers
  std::string_view about;  // both say the same: the purpose of the connection, and its two members
};

// The keys of one connection, as one of its two members has them.
struct ConnectionKeys {
  TrafficKey sends, receives;
  Secret says{}, hears{};  // each side's proof that it knows the keys, for the greeting
};

class KeyPair {
 public:
  static Result<KeyPair> make();
  ~KeyPair();
  KeyPair(const KeyPair&) = default;
  KeyPair& operator=(const KeyPair&) = default;

  [[nodiscard]] const PublicKey& public_key() const { return public_; }
  // kViolation if `other` is no point that gives a secret.
  [[nodiscard]] Result<ConnectionKeys> agree(const PublicKey& other, const Role& role) const;

 private:
  KeyPair() = default;
  PublicKey public_;
  std::array<std::byte, 32> private_{};
};

}  // namespace deft::link
