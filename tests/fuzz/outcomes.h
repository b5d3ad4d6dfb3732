// Counts what a parser of texts makes of an input: that it takes it, and each reason for which it refuses.
//
//   static Outcomes outcomes("files of links' costs", {"no JSON object", "names"});   // a part of each refusal
//   outcomes.taken();
//   outcomes.refused(error);     // dies if the error says nothing; a refusal that is not listed counts as the last kind
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "tests/fuzz/die.h"
#include "tests/fuzz/reached.h"

namespace deft::fuzz {

class Outcomes {
 public:
  Outcomes(const std::string& what, std::vector<std::string_view> refusals)
      : refusals_(std::move(refusals)), reached_(what, refusals_.size() + 1) {}

  void taken() { reached_.count(0); }
  void refused(const Error& error) {
    if (error.what.empty() || to_string(error.kind) == "unknown") die("an error that says nothing");
    std::size_t kind = 0;
    while (kind + 1 < refusals_.size() && error.what.find(refusals_[kind]) == std::string::npos) ++kind;
    reached_.count(kind + 1);
  }

 private:
  const std::vector<std::string_view> refusals_;
  Reached reached_;
};

}  // namespace deft::fuzz
