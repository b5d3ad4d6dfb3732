#include "bench/link/folder_store.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

namespace deft::link {

std::filesystem::path FolderStore::file(const std::string& key) const {
  std::string name = key;
  std::ranges::replace(name, '/', '_');
  return folder_ / name;
}

Result<void> FolderStore::set(const std::string& key, std::span<const std::byte> value) {
  const auto path = file(key);
  auto unfinished = path;
  unfinished += ".unfinished";
  std::ofstream out(unfinished, std::ios::binary);
  out.write(reinterpret_cast<const char*>(value.data()), static_cast<std::streamsize>(value.size()));
  out.close();
  if (!out) return fail(ErrorKind::kExhausted, "cannot write " + path.string());
  std::filesystem::rename(unfinished, path);
  return {};
}

Result<std::vector<std::vector<std::byte>>> FolderStore::get(std::span<const std::string> keys, TimeUs deadline_us) {
  std::vector<std::vector<std::byte>> found;
  while (found.size() < keys.size()) {
    std::ifstream in(file(keys[found.size()]), std::ios::binary);
    if (!in && MonotonicClock::now() > deadline_us) return fail(ErrorKind::kTimeout, "no " + keys[found.size()]);
    if (!in) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    found.emplace_back(first, first + text.size());
  }
  return found;
}

}  // namespace deft::link
