// A folder in which traces are written. It is held open, so nobody can lead the writer elsewhere by a symbolic link.
//
//   auto folder = TraceFolder::open("/tmp/traces");          // the last part of the path is made if it is not there
//   auto writer = TraceWriter::create(*folder, "a.trace", header);
//   (*folder).rename("a.trace.part", "a.trace");
//
// Folders like /tmp are everyone's: another user may put a symbolic link where a daemon is told to write, or exchange a folder for a
// link between a check and its use. So the path is walked part by part from folders that are open. Links of this process's user and of
// root are followed, and those of others are refused.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "core/base/descriptor.h"
#include "core/base/status.h"

namespace deft::trace {

class TraceFolder {
 public:
  enum class Make : bool { kLast, kAll };  // which parts of the path are made if they are not there

  // kInvalid: no such folder and none can be made, or the path leads over another user's link. The error names the path and the part.
  static Result<TraceFolder> open(const std::string& path, Make make = Make::kLast);

  // The folder of this name inside; it is made if it is not there, with this mode whatever the umask. kInvalid if it is none, or is a
  // link.
  [[nodiscard]] Result<TraceFolder> inside(const std::string& name, mode_t mode) const;
  // kInvalid if another user owns this folder.
  [[nodiscard]] Result<void> check_own() const;
  // Sets the mode of this folder, which this process owns. kInvalid if that fails.
  [[nodiscard]] Result<void> set_mode(mode_t mode) const;
  // Everyone who may enter this folder may read this file from now on. kInvalid if that fails.
  [[nodiscard]] Result<void> let_all_read(const std::string& name) const;
  // Within this folder. kInvalid if it cannot be.
  [[nodiscard]] Result<void> rename(const std::string& from, const std::string& to) const;
  // Replaces a file of that name, but follows no link.
  [[nodiscard]] Result<Descriptor> create(const std::string& name) const;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  TraceFolder(std::string path, Descriptor folder) : path_(std::move(path)), folder_(std::move(folder)) {}

  std::string path_;  // for messages
  Descriptor folder_;
};

}  // namespace deft::trace
