// The parameters of a codec, as a user wrote them: key=value[,key=value]. Each is read once, by the codec that knows it.
//
//   Parameters given(text);
//   const double ratio = given.number("ratio", 0.01, 1e-6, 1);
//   if (auto ok = given.finish("topk"); !ok) return ok;     // the first fault, or a key that nobody read
//
// Not thread-safe.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace deft::compress {

class Parameters {
 public:
  explicit Parameters(std::string_view text);  // `text` outlives this object

  // The value of `key`, or the default. A value outside least..most, or that is no number, becomes finish's error.
  double number(std::string_view key, double default_value, double least, double most);
  std::uint64_t integer(std::string_view key, std::uint64_t default_value, std::uint64_t least, std::uint64_t most);
  // One of `choices`, of which the first is the default.
  std::string_view choice(std::string_view key, std::span<const std::string_view> choices);

  [[nodiscard]] Result<void> finish(std::string_view codec) const;

  // All parameters that were read, in one spelling: "ratio=0.01,seed=7".
  [[nodiscard]] const std::string& canonical() const { return canonical_; }

 private:
  struct Given {
    std::string_view key, value;
    bool read = false;
  };
  std::optional<std::string_view> take(std::string_view key);
  void note(std::string_view key, std::string_view value);
  void refuse(std::string_view key, std::string_view value, const std::string& range);

  std::vector<Given> given_;
  std::vector<std::string_view> known_;
  std::string canonical_;
  std::optional<Error> fault_;
};

}  // namespace deft::compress
