// A folder that goes with its object, and all that is in it.
//
//   auto folder = TemporaryFolder::make("deft-runs", "traces");    // in TMPDIR
//   write_text(folder->path() / "question", text);
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "core/base/status.h"

namespace deft::tools {

class TemporaryFolder {
 public:
  // `purpose` stands in the error: "a folder for traces". kUnavailable: none can be made.
  static Result<TemporaryFolder> make(const std::string& name, const std::string& purpose);
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::filesystem::path path_;  // empty: moved from
};

}  // namespace deft::tools
