#include "core/trace/trace_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <deque>

namespace deft::trace {
namespace {

constexpr int kMostLinks = 40;  // of one path, as in the kernel
constexpr int kWalk = O_PATH | O_NOFOLLOW | O_CLOEXEC;
constexpr const char* kFix = "give a folder in which you may write, on each node";

tl::unexpected<Error> refuse(const std::string& path, const std::string& why) {
  return fail(ErrorKind::kInvalid, "the folder " + path + " of a trace cannot be used: " + why, kFix);
}

std::string reason() { return std::strerror(errno); }

// Walks a path from folder to folder. The walk owns the descriptor of the folder that it has reached.
class Walk {
 public:
  Walk(std::string path, TraceFolder::Make make) : path_(std::move(path)), make_(make) {}
  ~Walk() { enter(-1); }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  // The descriptor of the folder at the end of the path; the caller closes it.
  Result<int> run() {
    if (path_.empty()) return refuse(path_, "the path is empty");
    if (auto ok = begin(path_); !ok) return tl::unexpected(ok.error());
    while (!parts_.empty()) {
      const std::string part = std::move(parts_.front());
      parts_.pop_front();
      if (auto ok = step(part); !ok) return tl::unexpected(ok.error());
    }
    return std::exchange(fd_, -1);
  }

 private:
  void enter(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

  // Puts the parts of `path` before the parts that are left. An absolute path begins at the root.
  Result<void> begin(const std::string& path) {
    if (path.front() == '/' || fd_ < 0) {
      enter(::open(path.front() == '/' ? "/" : ".", kWalk | O_DIRECTORY));
      if (fd_ < 0) return refuse(path_, reason());
    }
    std::deque<std::string> parts;
    for (std::size_t at = 0; at < path.size();) {
      const std::size_t end = std::min(path.find('/', at), path.size());
      if (end > at) parts.push_back(path.substr(at, end - at));
      at = end + 1;
    }
    parts_.insert(parts_.begin(), parts.begin(), parts.end());
    return {};
  }

  Result<void> step(const std::string& part) {
    int next = ::openat(fd_, part.c_str(), kWalk);
    const bool may_make = make_ == TraceFolder::Make::kAll || parts_.empty();
    const bool is_made = next < 0 && errno == ENOENT && may_make &&
                         (::mkdirat(fd_, part.c_str(), 0755) == 0 || errno == EEXIST);  // another daemon was faster
    if (is_made) next = ::openat(fd_, part.c_str(), kWalk);
    struct ::stat status {};
    if (next < 0 || ::fstat(next, &status) != 0) {
      auto error = refuse(path_, part + ": " + reason());
      if (next >= 0) ::close(next);
      return error;
    }
    if (S_ISDIR(status.st_mode)) {
      enter(next);
      return {};
    }
    const auto ok = S_ISLNK(status.st_mode) ? follow(part, next, status.st_uid)
                                            : Result<void>(refuse(path_, part + " is no folder"));
    ::close(next);
    return ok;
  }

  Result<void> follow(const std::string& part, int link, uid_t owner) {
    if (owner != 0 && owner != ::geteuid())
      return refuse(path_, part + " is a symbolic link of user " + std::to_string(owner));
    if (++links_ > kMostLinks) return refuse(path_, std::strerror(ELOOP));
    std::array<char, PATH_MAX> target{};
    const ssize_t length = ::readlinkat(link, "", target.data(), target.size());
    if (length <= 0) return refuse(path_, part + ": " + reason());
    return begin({target.data(), static_cast<std::size_t>(length)});
  }

  const std::string path_;
  const TraceFolder::Make make_;
  std::deque<std::string> parts_;  // that are left to walk
  int fd_ = -1;
  int links_ = 0;
};

}  // namespace

Result<TraceFolder> TraceFolder::open(const std::string& path, Make make) {
  const auto fd = Walk(path, make).run();
  if (!fd) return tl::unexpected(fd.error());
  return TraceFolder(path, *fd);
}

TraceFolder::~TraceFolder() {
  if (fd_ >= 0) ::close(fd_);
}

Result<TraceFolder> TraceFolder::inside(const std::string& name, mode_t mode) const {
  const std::string path = path_ + "/" + name;
  if (::mkdirat(fd_, name.c_str(), mode) != 0 && errno != EEXIST) return refuse(path, reason());
  const int fd = ::openat(fd_, name.c_str(), kWalk | O_DIRECTORY);
  if (fd < 0) return refuse(path, reason());
  return TraceFolder(path, fd);
}

Result<void> TraceFolder::check_own() const {
  struct ::stat status {};
  if (::fstat(fd_, &status) != 0) return refuse(path_, reason());
  if (status.st_uid == ::geteuid()) return {};
  return refuse(path_, "it belongs to user " + std::to_string(status.st_uid));
}

Result<void> TraceFolder::rename(const std::string& from, const std::string& to) const {
  if (::renameat(fd_, from.c_str(), fd_, to.c_str()) == 0) return {};
  return refuse(path_, to + ": " + reason());
}

Result<int> TraceFolder::create(const std::string& name) const {
  if (::unlinkat(fd_, name.c_str(), 0) != 0 && errno != ENOENT) return refuse(path_, name + ": " + reason());
  const int fd = ::openat(fd_, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return refuse(path_, name + ": " + reason());
  return fd;
}

}  // namespace deft::trace
