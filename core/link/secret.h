// A secret that the members of a link share through their job's store, so that nobody else is taken for one of them.
//
//   const auto secret = make_secret();
//   group.store->set(key, with_text(*secret, "10.0.0.1:4711"));     // published, with where to find who made it
//   const auto invitation = split_text(value);                      // what another member published
//   if (!same(invitation->secret, heard)) hang_up();
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace deft::link {

using Secret = std::array<std::byte, 16>;

Result<Secret> make_secret();

// Takes a time that does not depend on where the two differ.
bool same(const Secret& a, const Secret& b);

struct SecretAndText {
  Secret secret{};
  std::string text;
};

// The secret's bytes, and behind them the text.
std::vector<std::byte> with_text(const Secret& secret, std::string_view text);
// The result is empty if there is no text.
std::optional<SecretAndText> split_text(std::span<const std::byte> value);

}  // namespace deft::link
