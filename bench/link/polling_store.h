// The store that the nodes of a benchmark share, which are threads of one process; and value_or_exit for their errors.
#pragma once

#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "core/link/link.h"

namespace deft::link {

// A key is set once and never removed. Waits by polling; only the opening of a link waits.
class PollingStore final : public Store {
 public:
  Result<void> set(const std::string& key, std::span<const std::byte> value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = {value.begin(), value.end()};
    return {};
  }
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override {
    std::vector<std::vector<std::byte>> found;
    while (found.size() < keys.size()) {
      if (MonotonicClock::now() > deadline_us) return fail(ErrorKind::kTimeout, "no " + keys[found.size()]);
      const std::lock_guard lock(mutex_);
      const auto value = values_.find(keys[found.size()]);
      if (value != values_.end()) found.push_back(value->second);
    }
    return found;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<std::byte>> values_;
};

template <typename T>
T value_or_exit(Result<T> result) {
  if (!result) {
    std::cerr << result.error().message() << "\n";
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace deft::link
