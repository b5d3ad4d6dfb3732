#include "tools/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace deft::tools {

namespace fs = std::filesystem;

Result<TemporaryFolder> TemporaryFolder::make(const std::string& name, const std::string& purpose) {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  std::string path = (parent / (name + "-XXXXXX")).string();
  if (!error && mkdtemp(path.data()) != nullptr) return TemporaryFolder(path);
  if (!error) error.assign(errno, std::generic_category());
  return fail(ErrorKind::kUnavailable,
              "cannot make a folder for " + purpose + " in " + (parent.empty() ? "TMPDIR" : parent.string()) + ": " +
                  error.message(),
              "let TMPDIR name a folder with room that this user may write");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace deft::tools
