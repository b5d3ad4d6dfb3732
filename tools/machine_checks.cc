#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <thread>

#include "core/base/control_groups.h"
#include "core/base/descriptor.h"
#include "core/shm/available_memory.h"
#include "core/shm/segment.h"
#include "tools/findings.h"

namespace deft::tools {
namespace {

constexpr double kMiB = 1024.0 * 1024;
constexpr double kGiB = 1024 * kMiB;
constexpr std::uint64_t kProbeBytes = 1U << 20;
constexpr rlim_t kFewFiles = 1024;
constexpr double kLittleMemory = 1 * kGiB;
constexpr double kFewCores = 2;  // a daemon and a worker

std::string gib(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < kGiB ? "%.0f MB" : "%.1f GB", bytes < kGiB ? bytes / kMiB : bytes / kGiB);
  return text;
}

std::string decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", value);
  return text;
}

std::string limit_text(rlim_t limit) { return limit == RLIM_INFINITY ? "unlimited" : gib(static_cast<double>(limit)); }

// The word in brackets of a file of the kernel: `always [madvise] never`.
std::string chosen_word(const char* path) {
  std::ifstream in(path);
  for (std::string word; in >> word;)
    if (word.starts_with('[') && word.ends_with(']')) return word.substr(1, word.size() - 2);
  return "";
}

// Bytes that are set aside for huge pages (vm.nr_hugepages) and that nobody uses.
std::uint64_t unused_huge_pages() {
  std::ifstream in("/proc/meminfo");
  std::uint64_t pages = 0, page_kib = 0, value = 0;
  std::string name, rest;
  while (in >> name >> value && std::getline(in, rest)) {
    if (name == "HugePages_Free:") pages = value;
    if (name == "Hugepagesize:") page_kib = value;
  }
  return pages * page_kib * 1024;
}

// Lets a child make the namespaces with which the lab emulates nodes. Gives 0, or errno.
int try_namespaces() {
  const pid_t child = fork();
  if (child < 0) return errno;
  if (child == 0) _exit(unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) == 0 ? 0 : errno);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  return WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
}

}  // namespace

Finding check_shared_memory() {
  auto segment = shm::Segment::create("deft-doctor", kProbeBytes);
  if (segment) return {Health::kOk, "shared memory", "sealed memfds work (no /dev/shm needed)", ""};
  return {
      Health::kFail, "shared memory", segment.error().what,
      segment.error().fix.empty() ? "Deft needs memfd_create with seals: Linux 3.17 or newer" : segment.error().fix};
}

Finding check_pidfd() {
  const Descriptor own(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  if (own.valid()) return {Health::kOk, "pidfd", "the death of a worker is seen at once", ""};
  return {Health::kWarn, "pidfd", std::string("pidfd_open: ") + std::strerror(errno),
          "a dead worker is then seen by its socket alone; Linux 5.3 or newer has pidfds"};
}

Finding check_memory(const Config& config) {
  const auto free_bytes = static_cast<double>(shm::available_memory());
  const auto wanted = static_cast<double>(config.bytes("memory_limit"));
  const auto group = static_cast<double>(ControlGroups().memory_limit_bytes().value_or(0));
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const std::string half = group > 0 && group < machine ? "half of the " + gib(group) + " of the control group"
                                                        : "half of the machine's memory";
  const std::string text = gib(free_bytes) + " available, option memory_limit " + (wanted > 0 ? gib(wanted) : half);
  if (wanted > free_bytes)
    return {Health::kWarn, "memory", text, "lower memory_limit or give the machine or container more memory"};
  if (free_bytes < kLittleMemory)
    return {Health::kWarn, "memory", text, "arenas need the gradients' size for each worker and slot"};
  return {Health::kOk, "memory", text, ""};
}

Finding check_memlock() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const std::string text = "locked memory: " + limit_text(limit.rlim_cur);
  if (limit.rlim_cur == RLIM_INFINITY || geteuid() == 0) return {Health::kOk, "memlock", text, ""};
  return {Health::kWarn, "memlock", text,
          "only NICs and GPUs that pin memory need more: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in the unit"};
}

Finding check_open_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const std::string text = std::to_string(limit.rlim_cur) + " open files";
  if (limit.rlim_cur >= kFewFiles) return {Health::kOk, "open files", text, ""};
  return {Health::kWarn, "open files", text, "a daemon needs about 10 for each worker: `ulimit -n 65536`"};
}

Finding check_cores(const Config& config) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  const auto quota = ControlGroups().cores();
  std::string text = std::to_string(cores) + " cores, option spin " + config.text("spin");
  if (quota && *quota < cores) text += "; the control group gives the time of " + decimal(*quota) + " cores";
  if (quota && *quota < kFewCores)
    return {Health::kWarn, "cores", text,
            "who has used up the quota stands still for the rest of each period, and all nodes wait: raise CPUQuota= "
            "of the "
            "unit, limits.cpu of the pod, or cpu.max of the group"};
  if (cores < 4 && config.seconds_us("spin") > 0)
    return {Health::kWarn, "cores", text, "spinning takes the cores from the workers here: set DEFT_SPIN=0"};
  return {Health::kOk, "cores", text, ""};
}

Finding check_congestion_control() {
  std::string control;
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> control;
  const std::string text = "congestion control: " + (control.empty() ? "not told" : control);
  if (control != "bbr") return {Health::kOk, "TCP", text, ""};
  return {
      Health::kWarn, "TCP", text,
      "what follows a pause may be paced too slowly, 20 to 60 ms a step: sysctl net.ipv4.tcp_congestion_control=cubic"};
}

Finding check_huge_pages() {
  const auto reserved = static_cast<double>(unused_huge_pages());
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const std::string text = gib(reserved) + " are set aside and unused";
  if (reserved > machine / 8)
    return {Health::kWarn, "huge pages", text, "Deft cannot use this memory: sysctl vm.nr_hugepages=0, or fewer"};
  if (chosen_word("/sys/kernel/mm/transparent_hugepage/enabled") != "never" &&
      chosen_word("/sys/kernel/mm/transparent_hugepage/defrag") == "always")
    return {Health::kWarn, "huge pages", text + "; transparent ones: defrag is always",
            "a worker or the daemon may stand still while the kernel makes one: "
            "echo madvise >/sys/kernel/mm/transparent_hugepage/defrag"};
  return {Health::kOk, "huge pages", text, ""};
}

Finding check_namespaces() {
  const int error = try_namespaces();
  if (error == 0) return {Health::kOk, "namespaces", "the lab (bench/compare) can emulate nodes and NICs", ""};
  return {
      Health::kWarn, "namespaces", std::string("unshare: ") + std::strerror(error),
      "only bench/compare and the quick start want them, and use plain loopback instead; "
      "sysctl kernel.unprivileged_userns_clone=1 (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu)"};
}

}  // namespace deft::tools
