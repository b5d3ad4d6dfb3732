// Feeds the reader of `deft set` with lines that libFuzzer makes up, as the daemon does with a user's. What is accepted must be the
// same after it has been written and read again, and must change nothing that was not named.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/sched/settings_change.h"
#include "tests/fuzz/outcomes.h"

namespace {

using deft::fuzz::die;
using deft::sched::parse_settings_change;
using deft::sched::SettingsChange;

deft::fuzz::Outcomes& outcomes() {
  static deft::fuzz::Outcomes found("outcomes of changes of settings",
                                    {"has no setting", "has no value", "is given twice", "no setting is given",
                                     "policy", "partition_bytes", "credit_bytes"});
  return found;
}

deft::fuzz::Reached& settings() {
  static deft::fuzz::Reached changed("settings that change", 3);
  return changed;
}

bool same(const SettingsChange& a, const SettingsChange& b) { return a.options() == b.options(); }

void check(const SettingsChange& change) {
  std::vector<std::string> words;
  for (const auto& [name, value] : change.options()) words.push_back(name + "=" + value);
  const auto again = parse_settings_change(words);
  if (!again || !same(*again, change)) die("a change that is written is another one");
  if (!same(change.after({}), change) || !same(SettingsChange().after(change), change)) die("a setting is lost");
  const auto sizes = change.sizes_after({1, 2});
  if (!change.partition_bytes && sizes.partition_bytes != 1) die("a size changes that nobody has named");
  if (!change.credit_bytes && sizes.credit_bytes != 2) die("a credit changes that nobody has named");
  if (sizes.partition_bytes == 0 || sizes.credit_bytes == 0) die("a size of nothing");
  if (change.policy) settings().count(0);
  if (change.partition_bytes) settings().count(1);
  if (change.credit_bytes) settings().count(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view left(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> words;
  while (!left.empty()) {
    const auto end = left.find('\n');
    words.emplace_back(left.substr(0, end));
    left = end == std::string_view::npos ? std::string_view{} : left.substr(end + 1);
  }
  const auto change = parse_settings_change(words);
  if (!change) {
    outcomes().refused(change.error());
    return 0;
  }
  outcomes().taken();
  check(*change);
  return 0;
}
