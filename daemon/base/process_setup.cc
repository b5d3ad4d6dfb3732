#include "daemon/base/process_setup.h"

#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string_view>

namespace deft::daemon {
namespace {

// The kernel's, whose own header does not go with the C library's.
struct SchedulingAttributes {
  std::uint32_t size, policy;
  std::uint64_t flags;
  std::int32_t nice;
  std::uint32_t priority;
  std::uint64_t runtime_ns, deadline_ns, period_ns;
};

}  // namespace

void make_room_for_descriptors() {
  constexpr rlim_t kMost = 65'536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == 0) return;
  const int last = static_cast<int>(std::min(limit.rlim_cur, kMost) - 1);
  if (const int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, last); fd >= 0) close(fd);
}

void keep_large_buffers_off_the_heap() {
  constexpr int kLargeBytes = 256 << 10;
  mallopt(M_MMAP_THRESHOLD, kLargeBytes);  // glibc never changes a threshold that a program has set
}

void give_back_free_memory() { malloc_trim(0); }

void ask_for_short_slices() {
  constexpr std::uint64_t kSliceNs = 100'000;  // the least that the kernel takes
  SchedulingAttributes attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.size = sizeof attributes;
  attributes.runtime_ns = kSliceNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void end_at_the_latest(unsigned seconds) {
  signal(SIGALRM, [](int) {
    constexpr std::string_view kWhy = "deftd: a thread of a job hangs, and the daemon ends without it\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kWhy.data(), kWhy.size());
    _exit(1);
  });
  alarm(seconds);
}

}  // namespace deft::daemon
