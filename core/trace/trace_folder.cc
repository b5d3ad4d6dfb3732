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
#include <utility>

namespace deft::trace {
namespace {

constexpr int kMostLinks = 40;    // of one path, as in the kernel
constexpr int kMostTries = 1000;  // to make a file that others make at the same time
constexpr int kWalk = O_PATH | O_NOFOLLOW | O_CLOEXEC;
constexpr const char* kFix = "give a folder in which you may write, on each node";

tl::unexpected<Error> refuse(const std::string& path, const std::string& why) {
  return fail(ErrorKind::kInvalid, "the folder " + path + " of a trace cannot be used: " + why, kFix);
}

std::string reason() { return std::strerror(errno); }

// Walks a path from folder to folder.
class Walk {
 public:
  Walk(std::string path, TraceFolder::Make make) : path_(std::move(path)), make_(make) {}

  // The folder at the end of the path.
  Result<Descriptor> run() {
    if (path_.empty()) return refuse(path_, "the path is empty");
    if (auto ok = begin(path_); !ok) return tl::unexpected(ok.error());
    while (!parts_.empty()) {
      const std::string part = std::move(parts_.front());
      parts_.pop_front();
      if (auto ok = step(part); !ok) return tl::unexpected(ok.error());
    }
    return std::move(at_);
  }

 private:
  // Puts the parts of `path` before the parts that are left. An absolute path begins at the root.
  Result<void> begin(const std::string& path) {
    if (path.front() == '/' || !at_.valid()) {
      at_ = Descriptor(::open(path.front() == '/' ? "/" : ".", kWalk | O_DIRECTORY));
      if (!at_.valid()) return refuse(path_, reason());
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
    Descriptor next(::openat(at_.get(), part.c_str(), kWalk));
    const bool may_make = make_ == TraceFolder::Make::kAll || parts_.empty();
    const bool is_made =
        !next.valid() && errno == ENOENT && may_make &&
        (::mkdirat(at_.get(), part.c_str(), 0755) == 0 || errno == EEXIST);  // another daemon was faster
    if (is_made) next = Descriptor(::openat(at_.get(), part.c_str(), kWalk));
    struct ::stat status {};
    if (!next.valid() || ::fstat(next.get(), &status) != 0) return refuse(path_, part + ": " + reason());
    if (S_ISDIR(status.st_mode)) {
      at_ = std::move(next);
      return {};
    }
    if (!S_ISLNK(status.st_mode)) return refuse(path_, part + " is no folder");
    return follow(part, next.get(), status.st_uid);
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
  Descriptor at_;                  // the folder that the walk has reached
  int links_ = 0;
};

}  // namespace

Result<TraceFolder> TraceFolder::open(const std::string& path, Make make) {
  auto folder = Walk(path, make).run();
  if (!folder) return tl::unexpected(folder.error());
  return TraceFolder(path, *std::move(folder));
}

Result<TraceFolder> TraceFolder::inside(const std::string& name, mode_t mode) const {
  const std::string path = path_ + "/" + name;
  const bool is_made = ::mkdirat(folder_.get(), name.c_str(), mode) == 0;
  if (!is_made && errno != EEXIST) return refuse(path, reason());
  Descriptor opened(::openat(folder_.get(), name.c_str(), kWalk | O_DIRECTORY));
  if (!opened.valid()) return refuse(path, reason());
  TraceFolder folder(path, std::move(opened));
  if (is_made)
    if (auto ok = folder.set_mode(mode); !ok) return tl::unexpected(ok.error());
  return folder;
}

Result<void> TraceFolder::set_mode(mode_t mode) const {
  const Descriptor folder(
      ::openat(folder_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));  // a path alone has no fchmod
  if (folder.valid() && ::fchmod(folder.get(), mode) == 0) return {};
  return refuse(path_, reason());
}

Result<void> TraceFolder::let_all_read(const std::string& name) const {
  const Descriptor file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.valid() && ::fchmod(file.get(), 0644) == 0) return {};
  return refuse(path_, name + ": " + reason());
}

Result<void> TraceFolder::check_own() const {
  struct ::stat status {};
  if (::fstat(folder_.get(), &status) != 0) return refuse(path_, reason());
  if (status.st_uid == ::geteuid()) return {};
  return refuse(path_, "it belongs to user " + std::to_string(status.st_uid));
}

Result<void> TraceFolder::rename(const std::string& from, const std::string& to) const {
  if (::renameat(folder_.get(), from.c_str(), folder_.get(), to.c_str()) == 0) return {};
  return refuse(path_, to + ": " + reason());
}

Result<Descriptor> TraceFolder::create(const std::string& name) const {
  for (int tries = 0;; ++tries) {
    if (::unlinkat(folder_.get(), name.c_str(), 0) != 0 && errno != ENOENT)
      return refuse(path_, name + ": " + reason());
    Descriptor file(::openat(folder_.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (file.valid()) return file;
    // The daemon of another node that shares the disk has made it in between.
    if (errno != EEXIST || tries == kMostTries) return refuse(path_, name + ": " + reason());
  }
}

}  // namespace deft::trace
