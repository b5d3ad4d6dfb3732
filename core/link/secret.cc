#include "core/link/secret.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace deft::link {

Result<Secret> make_secret() {
  Secret secret{};
  if (getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    return fail(ErrorKind::kInternal, std::string("the kernel gives no random numbers: ") + std::strerror(errno));
  return secret;
}

bool same(const Secret& a, const Secret& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

std::vector<std::byte> with_text(const Secret& secret, std::string_view text) {
  std::vector<std::byte> value(secret.begin(), secret.end());
  const auto bytes = std::as_bytes(std::span(text));
  value.insert(value.end(), bytes.begin(), bytes.end());
  return value;
}

std::optional<SecretAndText> split_text(std::span<const std::byte> value) {
  SecretAndText parts;
  if (value.size() <= parts.secret.size()) return std::nullopt;
  std::copy_n(value.begin(), parts.secret.size(), parts.secret.begin());
  const auto text = value.subspan(parts.secret.size());
  parts.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  return parts;
}

}  // namespace deft::link
