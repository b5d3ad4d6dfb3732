#include "daemon/base/descriptor_table.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace deft::daemon {

void make_room_for_descriptors() {
  constexpr rlim_t kMost = 65'536;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == 0) return;
  const int last = static_cast<int>(std::min(limit.rlim_cur, kMost) - 1);
  if (const int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, last); fd >= 0) close(fd);
}

}  // namespace deft::daemon
