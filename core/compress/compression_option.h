// Reads the option `compression`: which codecs a job has.
//
//   const std::string compression = compression_of(config);    // "auto/max=int8" if a policy that makes plans is left to itself
//   if (const auto ladder = ladder_of(compression)) ...        // plans choose among these codecs: bf16, int8
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/config.h"

namespace deft::compress {

// The option; if it is empty, what the policy does by itself. Only a policy that may approximate encodes unasked.
std::string compression_of(const Config& config);

// The codecs among which `compression` lets plans choose beside none, the most bits first: the dense ones down to that of auto/max=NAME.
// If that is no dense codec, it is the only one. Empty: plans do not choose, and all gradients have one codec, or none.
std::optional<std::vector<std::string>> ladder_of(std::string_view compression);

}  // namespace deft::compress
