// Looks for threads before a library makes some that does not live on without them, or leaks.
//
//   if (auto ok = try_threads(3); !ok) return tl::unexpected(ok.error());
#pragma once

#include <cstddef>

#include "core/base/status.h"

namespace deft::link {

// kExhausted if `count` threads cannot run at once. Their stacks stay with the C library, which gives them to the next threads.
Result<void> try_threads(std::size_t count);

}  // namespace deft::link
