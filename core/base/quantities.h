// Numbers with units, as options and flags give them: "4MB", "30s".
//
//   parse_bytes("4MB")                          // 4194304
//   parse_size("--memory", "8GB")               // the same with an error that names the flag
//   size_words(1.5e9)                           // "1.4 GB"
//
// Units may be in upper or lower case, and blanks may stand before them. A KB has 1024 bytes. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft {

// All three give nothing if `text` is no finite number, or has another unit. A number without a unit counts bytes, or seconds.
std::optional<double> parse_number(std::string_view text);   // no unit
std::optional<double> parse_bytes(std::string_view text);    // B, K, KB or KiB up to TB
std::optional<double> parse_seconds(std::string_view text);  // us, ms, s, m or min, h

// kInvalid, naming `flag`, unless it is a size of 1 byte to 1024 TB.
Result<std::uint64_t> parse_size(const std::string& flag, std::string_view text);
// kInvalid, naming `flag`, unless it is a time of up to a day.
Result<TimeUs> parse_duration(const std::string& flag, std::string_view text);

// "1.5 GB"
std::string size_words(double bytes);

}  // namespace deft
