#include "core/compress/parameters.h"

#include <algorithm>

#include "core/base/numbers.h"
#include "core/base/text.h"

namespace deft::compress {

Parameters::Parameters(std::string_view text) {
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    const auto equals = one.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      fault_ = Error{
          ErrorKind::kInvalid, "'" + readable(one, 40) + "' is no key=value", "write for instance topk/ratio=0.01", {}};
      return;
    }
    given_.push_back({one.substr(0, equals), one.substr(equals + 1)});
  }
}

std::optional<std::string_view> Parameters::take(std::string_view key) {
  known_.push_back(key);
  std::optional<std::string_view> value;
  for (Given& given : given_) {
    if (given.key != key) continue;
    if (value) refuse(key, given.value, "one value, not two");
    given.read = true;
    value = given.value;
  }
  return value;
}

void Parameters::note(std::string_view key, std::string_view value) {
  if (!canonical_.empty()) canonical_ += ',';
  canonical_.append(key).append("=").append(value);
}

void Parameters::refuse(std::string_view key, std::string_view value, const std::string& range) {
  if (fault_) return;
  fault_ = Error{
      ErrorKind::kInvalid, std::string(key) + "=" + readable(value, 40) + " is out of range", "give " + range, {}};
}

double Parameters::number(std::string_view key, double default_value, double least, double most) {
  double value = default_value;
  if (const auto text = take(key)) {
    const auto parsed = parse_whole<double>(*text);
    if (!parsed || !(*parsed >= least && *parsed <= most))
      refuse(key, *text, std::string(key) + "=" + number_text(least) + " to " + number_text(most));
    else
      value = *parsed;
  }
  note(key, number_text(value));
  return value;
}

std::uint64_t Parameters::integer(std::string_view key, std::uint64_t default_value, std::uint64_t least,
                                  std::uint64_t most) {
  std::uint64_t value = default_value;
  if (const auto text = take(key)) {
    const auto parsed = parse_whole<std::uint64_t>(*text);
    if (!parsed || *parsed < least || *parsed > most)
      refuse(key, *text, std::string(key) + "=" + std::to_string(least) + " to " + std::to_string(most));
    else
      value = *parsed;
  }
  note(key, std::to_string(value));
  return value;
}

std::string_view Parameters::choice(std::string_view key, std::span<const std::string_view> choices) {
  std::string_view value = choices.front();
  if (const auto text = take(key)) {
    const auto known = std::ranges::find(choices, *text);
    if (known != choices.end())
      value = *known;
    else if (!fault_)
      fault_ = Error{ErrorKind::kInvalid,
                     std::string(key) + "=" + readable(*text, 40) + " does not exist",
                     did_you_mean(*text, choices, "give " + std::string(key) + "=" + joined(choices, " or ")),
                     {}};
  }
  note(key, value);
  return value;
}

Result<void> Parameters::finish(std::string_view codec) const {
  if (fault_) return tl::unexpected(fault_->in("codec " + std::string(codec)));
  for (const Given& given : given_) {
    if (given.read) continue;
    return fail(
        ErrorKind::kInvalid, "the codec " + std::string(codec) + " has no parameter '" + readable(given.key, 40) + "'",
        did_you_mean(given.key, known_, known_.empty() ? "it has none" : "it has " + std::string(known_.front())));
  }
  return {};
}

}  // namespace deft::compress
