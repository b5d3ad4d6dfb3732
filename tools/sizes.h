// Sizes of memory that a command is given, and shows: "8GB", "512MB".
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

namespace deft::tools {

// kInvalid, naming `flag`, unless it is a size of 1 byte to 1024 TB.
Result<std::uint64_t> parse_size(const std::string& flag, const std::string& text);

// "1.5 GB"
std::string size_words(double bytes);

}  // namespace deft::tools
