#include "tests/link/stores.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace deft::link::testing {
namespace {

tl::unexpected<Error> timed_out(const std::string& missing) {
  return fail(ErrorKind::kTimeout, "the store has no " + missing);
}

}  // namespace

Result<void> MemoryStore::set(const std::string& key, std::span<const std::byte> value) {
  const std::lock_guard lock(mutex_);
  values_[key] = Bytes(value.begin(), value.end());
  changed_.notify_all();
  return {};
}

Result<std::vector<Bytes>> MemoryStore::get(std::span<const std::string> keys, TimeUs deadline_us) {
  std::unique_lock lock(mutex_);
  std::vector<Bytes> found;
  for (const std::string& key : keys) {
    while (!values_.contains(key)) {
      const TimeUs left = deadline_us - MonotonicClock::now();
      if (left <= 0) return timed_out(key);
      changed_.wait_for(lock, std::chrono::microseconds(left));
    }
    found.push_back(values_[key]);
  }
  return found;
}

struct SharedStore::Entry {
  std::atomic<bool> complete;
  char key[128];
  std::uint32_t size;
  std::byte value[4096];
};

struct SharedStore::Table {
  static constexpr std::uint32_t kEntries = 512;
  std::atomic<std::uint32_t> used;
  Entry entries[kEntries];
};

SharedStore::SharedStore() {
  void* memory = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  table_ = static_cast<Table*>(memory);  // all zero: empty
}

SharedStore::~SharedStore() { munmap(table_, sizeof(Table)); }

Result<void> SharedStore::set(const std::string& key, std::span<const std::byte> value) {
  const std::uint32_t index = table_->used.fetch_add(1);
  if (index >= Table::kEntries || key.size() >= sizeof(Entry::key) || value.size() > sizeof(Entry::value)) {
    return fail(ErrorKind::kExhausted, "the test's store is full");
  }
  Entry& entry = table_->entries[index];
  std::memcpy(entry.key, key.c_str(), key.size() + 1);
  std::memcpy(entry.value, value.data(), value.size());
  entry.size = static_cast<std::uint32_t>(value.size());
  entry.complete.store(true);
  return {};
}

bool SharedStore::find(const std::string& key, Bytes& value) const {
  for (const Entry& entry : table_->entries) {
    if (!entry.complete.load() || key != entry.key) continue;
    value.assign(entry.value, entry.value + entry.size);
    return true;
  }
  return false;
}

Result<std::vector<Bytes>> SharedStore::get(std::span<const std::string> keys, TimeUs deadline_us) {
  std::vector<Bytes> found(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    while (!find(keys[i], found[i])) {
      if (MonotonicClock::now() >= deadline_us) return timed_out(keys[i]);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  return found;
}

}  // namespace deft::link::testing
