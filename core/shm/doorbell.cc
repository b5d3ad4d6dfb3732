#include "core/shm/doorbell.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

namespace deft::shm {
namespace {

// The kernel's name for the file behind a descriptor.
std::string kernel_name(int fd) {
  char target[64] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  return readlink(link.c_str(), target, sizeof target - 1) > 0 ? target : "";
}

}  // namespace

Result<Doorbell> Doorbell::create() {
  Descriptor descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!descriptor.valid())
    return fail(ErrorKind::kExhausted, std::string("cannot make an eventfd: ") + std::strerror(errno),
                "raise the limit on open files (ulimit -n)");
  return Doorbell(std::move(descriptor));
}

Result<Doorbell> Doorbell::adopt(Descriptor descriptor) {
  if (!descriptor.valid()) return fail(ErrorKind::kViolation, "no doorbell was passed");
  if (const auto name = kernel_name(descriptor.get()); name != "anon_inode:[eventfd]")
    return fail(ErrorKind::kViolation, "'" + name + "' was passed where a doorbell was due");
  const int flags = fcntl(descriptor.get(), F_GETFL);
  if (flags < 0 || fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) != 0)
    return fail(ErrorKind::kInternal, std::string("cannot set up a doorbell: ") + std::strerror(errno));
  return Doorbell(std::move(descriptor));
}

void Doorbell::ring() const {
  const std::uint64_t one = 1;
  while (write(descriptor_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void Doorbell::drain() const {
  std::uint64_t count = 0;
  while (read(descriptor_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
}

bool Doorbell::wait(TimeUs deadline_us) const {
  while (true) {
    const TimeUs left_us = std::max<TimeUs>(deadline_us - MonotonicClock::now(), 0);
    pollfd entry{descriptor_.get(), POLLIN, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min<TimeUs>((left_us + 999) / 1000, INT_MAX)));
    if (ready > 0) {
      drain();
      return true;
    }
    if (ready == 0 && MonotonicClock::now() >= deadline_us) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace deft::shm
