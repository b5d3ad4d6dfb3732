#include "core/link/gloo/watching_epoll.h"

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace deft::link::gloo_backend {
namespace {

// A line of the kernel: "tfd:       19 events:       1d data:     7f3c2000  pos:0 ino:61af sdev:7". The last two numbers are hexadecimal.
bool says_that_it_watches(const std::string& line, int fd, std::uintptr_t data) {
  std::istringstream words(line);
  std::string tfd, events, mask, label;
  int watched = -1;
  std::uintptr_t value = 0;
  words >> tfd >> watched >> events >> mask >> label >> std::hex >> value;
  return words && tfd == "tfd:" && label == "data:" && watched == fd && value == data;
}

bool watches(const std::string& epoll, int fd, std::uintptr_t data) {
  std::ifstream lines("/proc/self/fdinfo/" + epoll);
  for (std::string line; std::getline(lines, line);)
    if (says_that_it_watches(line, fd, data)) return true;
  return false;
}

}  // namespace

std::optional<int> epoll_that_watches(int fd, const void* data) {
  std::error_code error;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error); !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;  // another thread may have closed it
    if (std::filesystem::read_symlink(entry->path(), gone) != "anon_inode:[eventpoll]") continue;
    const std::string name = entry->path().filename();
    int epoll = -1;
    std::from_chars(name.data(), name.data() + name.size(), epoll);
    if (watches(name, fd, reinterpret_cast<std::uintptr_t>(data))) return epoll;
  }
  return std::nullopt;
}

}  // namespace deft::link::gloo_backend
