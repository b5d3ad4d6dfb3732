#include "daemon/http/process_numbers.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace deft::daemon {
namespace {

constexpr double kMicro = 1e-6;

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * kMicro;
}

void add_memory(nlohmann::json& json) {
  std::uint64_t size_pages = 0, resident_pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> size_pages >> resident_pages)) return;
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  json["virtual_memory_bytes"] = size_pages * page_bytes;
  json["resident_memory_bytes"] = resident_pages * page_bytes;
}

// The number of entries of a folder, without its own handle.
void count_entries(nlohmann::json& json, const char* name, const char* folder, std::int64_t own) {
  std::error_code error;
  std::int64_t count = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) ++count;
  if (!error) json[name] = count - own;
}

}  // namespace

nlohmann::json process_numbers() {
  nlohmann::json json = nlohmann::json::object();
  add_memory(json);
  count_entries(json, "open_fds", "/proc/self/fd", 1);
  count_entries(json, "threads", "/proc/self/task", 0);
  if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0) json["max_fds"] = limit.rlim_cur;
  if (rusage usage{}; getrusage(RUSAGE_SELF, &usage) == 0)
    json["cpu_seconds"] = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return json;
}

}  // namespace deft::daemon
