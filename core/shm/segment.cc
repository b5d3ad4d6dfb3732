#include "core/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/interprocess/exceptions.hpp>
#include <cerrno>
#include <cstring>
#include <limits>

#include "core/shm/available_memory.h"

namespace deft::shm {
namespace {

namespace bi = boost::interprocess;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// What Boost maps: a descriptor that somebody else owns.
class Mappable {
 public:
  explicit Mappable(int fd) : fd_(fd) {}
  [[nodiscard]] bi::mapping_handle_t get_mapping_handle() const {
    return bi::ipcdetail::mapping_handle_from_file_handle(fd_);
  }
  [[nodiscard]] bi::mode_t get_mode() const { return bi::read_write; }

 private:
  int fd_;
};

std::string named(const std::string& label, std::uint64_t bytes) {
  return "the segment " + label + " of " + std::to_string(bytes) + " bytes";
}

tl::unexpected<Error> failed(const std::string& what, int error) {
  const bool full = error == ENOSPC || error == ENOMEM || error == EMFILE || error == ENFILE || error == EFBIG;
  const char* fix = error == EMFILE || error == ENFILE ? "raise the limit on open files (ulimit -n)"
                    : full                             ? "give the machine or the container more memory"
                                                       : "";
  return fail(full ? ErrorKind::kExhausted : ErrorKind::kInternal, what + ": " + std::strerror(error), fix);
}

Result<bi::mapped_region> map_region(int fd, std::uint64_t bytes) {
  try {
    return bi::mapped_region(Mappable(fd), bi::read_write, 0, bytes);
  } catch (const bi::interprocess_exception& e) {
    return failed("cannot map " + std::to_string(bytes) + " bytes of shared memory", e.get_native_error());
  }
}

constexpr std::uint64_t kReserve = 32U << 20;  // for the process itself, besides segments

// Other processes see the same free memory, too, and are not counted. So a segment is allocated in pieces, and each of them asks for room:
// together, a handful of daemons in one control group overshoot by less than the reserve.
constexpr std::uint64_t kPieceBytes = 8U << 20;

// Counts the bytes that the threads of this process have still to allocate: each of them sees the same free memory.
class Pending {
 public:
  explicit Pending(std::uint64_t bytes) : left_(bytes), before_(all().fetch_add(bytes)) {}
  ~Pending() { all() -= left_; }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  [[nodiscard]] std::uint64_t of_others() const { return before_; }
  void allocated(std::uint64_t bytes) {
    all() -= bytes;
    left_ -= bytes;
  }

 private:
  static std::atomic<std::uint64_t>& all() {
    static std::atomic<std::uint64_t> bytes{0};
    return bytes;
  }
  std::uint64_t left_;
  const std::uint64_t before_;
};

// The kernel grants every request until nothing is left, and then kills; a file size limit is a signal: ask first.
Result<void> check_file_size(const std::string& label, std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur)
    return fail(ErrorKind::kExhausted,
                named(label, bytes) + " is beyond the limit on file sizes of " + std::to_string(limit.rlim_cur),
                "raise it (ulimit -f)");
  return {};
}

// For `bytes`, which are a segment or the rest of one.
Result<void> check_room(const std::string& what, std::uint64_t bytes, std::uint64_t of_others) {
  std::uint64_t available = available_memory();
  available -= std::min(available, kReserve + of_others);
  if (bytes > available)
    return fail(ErrorKind::kExhausted,
                what + " does not fit into the " + std::to_string(available) + " bytes that are free",
                "give the machine or the container more memory");
  return {};
}

Result<void> allocate(int fd, const std::string& label, std::uint64_t bytes) {
  Pending pending(bytes);
  if (auto room = check_room(named(label, bytes), bytes, pending.of_others()); !room) return room;
  for (std::uint64_t at = 0; at < bytes;) {
    const std::uint64_t rest = bytes - at, piece = std::min(kPieceBytes, rest);
    const std::string what = "the rest of " + std::to_string(rest) + " bytes of " + named(label, bytes);
    if (auto room = at == 0 ? Result<void>() : check_room(what, rest, 0); !room) return room;
    const int error = posix_fallocate(fd, static_cast<off_t>(at), static_cast<off_t>(piece));
    if (error == EINTR) continue;
    if (error != 0) return failed("cannot allocate " + named(label, bytes), error);
    pending.allocated(piece);
    at += piece;
  }
  return {};
}

}  // namespace

Result<Segment> Segment::create(const std::string& label, std::uint64_t bytes) {
  if (bytes == 0) return fail(ErrorKind::kInvalid, "the segment " + label + " would be empty");
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes > static_cast<std::uint64_t>(std::numeric_limits<off_t>::max()) - page)
    return fail(ErrorKind::kExhausted, named(label, bytes) + " is larger than any file");
  bytes = (bytes + page - 1) / page * page;
  if (auto ok = check_file_size(label, bytes); !ok) return tl::unexpected(ok.error());
  Descriptor descriptor(memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.valid()) return failed("cannot make " + named(label, bytes), errno);
  if (auto ok = allocate(descriptor.get(), label, bytes); !ok) return tl::unexpected(ok.error());
  if (fcntl(descriptor.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0)
    return failed("cannot seal " + named(label, bytes), errno);
  auto region = map_region(descriptor.get(), bytes);
  if (!region) return tl::unexpected(region.error());
  return Segment(std::move(descriptor), std::move(*region));
}

void Segment::discard() const {
  // If this fails, the kernel frees the memory when the last process unmaps it.
  static_cast<void>(fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                              static_cast<off_t>(region_.get_size())));
}

// A private mapping of the same file takes the place at once. It is made elsewhere and moved, because mmap removes what is in its place
// before it finds that memory is short. Then each page is written, so that the kernel copies it. A byte that another thread writes
// meanwhile stays, because the write is atomic and changes nothing. Compilers leave out a fetch_or(0), but not this.
Result<void> Segment::become_private() const {
  if (auto room = check_room("a copy of " + std::to_string(bytes()) + " bytes of shared memory", bytes(), 0); !room)
    return room;
  void* const made = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor_.get(), 0);
  const bool is_moved =
      made != MAP_FAILED && mremap(made, bytes(), bytes(), MREMAP_MAYMOVE | MREMAP_FIXED, data()) != MAP_FAILED;
  if (!is_moved) {
    const int error = errno;
    if (made != MAP_FAILED) munmap(made, bytes());
    return failed("cannot copy " + std::to_string(bytes()) + " bytes of shared memory", error);
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  for (std::uint64_t at = 0; at < bytes(); at += page) {
    const std::atomic_ref first(*reinterpret_cast<unsigned char*>(data() + at));
    unsigned char value = first.load();
    while (!first.compare_exchange_weak(value, value)) {
    }
  }
  return {};
}

Result<Segment> Segment::map(Descriptor descriptor, std::uint64_t bytes) {
  if (!descriptor.valid() || bytes == 0) return fail(ErrorKind::kViolation, "no shared memory was passed");
  const int seals = fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals)
    return fail(ErrorKind::kViolation, "shared memory was passed whose size is not sealed");
  struct stat info {};
  if (fstat(descriptor.get(), &info) != 0) return failed("cannot look at passed shared memory", errno);
  if (static_cast<std::uint64_t>(info.st_size) < bytes)
    return fail(ErrorKind::kViolation, "shared memory of " + std::to_string(info.st_size) + " bytes was passed where " +
                                           std::to_string(bytes) + " were due");
  auto region = map_region(descriptor.get(), bytes);
  if (!region) return tl::unexpected(region.error());
  return Segment(std::move(descriptor), std::move(*region));
}

}  // namespace deft::shm
