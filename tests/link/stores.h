// Stores for tests: one for nodes that are threads, one for nodes that are processes forked from the test.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "core/link/link.h"

namespace deft::link::testing {

using Bytes = std::vector<std::byte>;

class MemoryStore final : public Store {
 public:
  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<Bytes>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> values_;
};

// In memory that survives fork(). Waits by polling, because a child may be killed while it holds anything.
class SharedStore final : public Store {
 public:
  SharedStore();
  ~SharedStore() override;
  SharedStore(const SharedStore&) = delete;
  SharedStore& operator=(const SharedStore&) = delete;
  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<Bytes>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

 private:
  struct Entry;
  struct Table;
  [[nodiscard]] bool find(const std::string& key, Bytes& value) const;
  Table* table_;
};

}  // namespace deft::link::testing
