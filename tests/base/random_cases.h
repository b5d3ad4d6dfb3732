// How many random cases a test tries. With a sanitizer each takes ten times as long, so a tenth of them, as deft_cases() in
// cmake/DeftModule.cmake does for properties.
#pragma once

#include <cstddef>

namespace deft {

constexpr std::size_t random_cases(std::size_t count) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return count / 10;
#else
  return count;
#endif
}

}  // namespace deft
