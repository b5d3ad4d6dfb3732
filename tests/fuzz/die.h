// Ends a fuzzer that has found a defect: libFuzzer then keeps the input.
//
//   if (sum != 2) deft::fuzz::die("a wrong sum");
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace deft::fuzz {

[[noreturn]] inline void die(const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::abort();
}

}  // namespace deft::fuzz
