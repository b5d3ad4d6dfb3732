// Reads a file that a user has named. It may be a folder, or a device that never ends.
//
//   auto text = read_text_file("the profile", path, 64U << 20, "check the path and its permissions");
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace deft {

// All of the file. kInvalid, naming `what`, the path and the reason, if it cannot be read or has more than `most_bytes`. `fix`: what to do
// if there is no such file.
Result<std::string> read_text_file(const std::string& what, const std::string& path, std::size_t most_bytes,
                                   const std::string& fix);

// A line of a flag file without its comment, which begins with a # at the line's beginning or behind a blank: job = run#1 has none.
std::string_view without_comment(std::string_view line);

}  // namespace deft
