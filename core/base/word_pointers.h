// The words of a command, or its environment, as exec and posix_spawn take them: a pointer to each, and a null pointer behind.
//
//   posix_spawn(&child, words[0].c_str(), nullptr, nullptr, pointers_to(words).data(), pointers_to(environment).data());
//
// They hold as long as `words` does. Pure.
#pragma once

#include <string>
#include <vector>

namespace deft {

inline std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace deft
