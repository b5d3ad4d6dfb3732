// Which kinds of messages a fuzzer has reached. scripts/test fuzz prints it, and fails if the fuzzer's seeds alone do not reach all.
//
//   static Reached reached("control messages to a node", 17);
//   reached.count(message.index());
//   // when the fuzzer ends:   reached: control messages to a node: 17 of 17 kinds, each at least 3 times
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace deft::fuzz {

class Reached {
 public:
  Reached(std::string what, std::size_t kinds) : what_(std::move(what)), counts_(kinds) {}
  Reached(const Reached&) = delete;
  Reached& operator=(const Reached&) = delete;
  ~Reached() {
    std::string missing;
    for (std::size_t kind = 0; kind < counts_.size(); ++kind)
      if (counts_[kind] == 0) missing += " " + std::to_string(kind);
    const auto reached = counts_.size() - static_cast<std::size_t>(std::ranges::count(counts_, 0U));
    std::fprintf(stderr, "reached: %s: %zu of %zu kinds, %s%s\n", what_.c_str(), reached, counts_.size(),
                 missing.empty() ? "each at least " : "not", missing.empty() ? least().c_str() : missing.c_str());
  }

  void count(std::size_t kind) {
    if (kind < counts_.size()) ++counts_[kind];
  }

 private:
  [[nodiscard]] std::string least() const { return std::to_string(*std::ranges::min_element(counts_)) + " times"; }

  const std::string what_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace deft::fuzz
