#include "tools/installed.h"

#include <array>
#include <span>
#include <system_error>

namespace deft::tools {
namespace {

using std::filesystem::path;

// Empty if it is unknown.
path prefix() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? path() : program.parent_path().parent_path();
}

path first_package(std::span<const path> folders) {
  std::error_code error;
  for (const auto& folder : folders)
    if (std::filesystem::exists(folder / "__init__.py", error)) return folder;
  return {};
}

}  // namespace

// In a wheel the program is deft/bin/deft, within the package.
path python_package() {
  return first_package(
      std::array{prefix() / "python" / "deft", prefix() / "lib" / "deft" / "python" / "deft", prefix()});
}

path python_path() {
  const path package = python_package();
  return package.empty() || package == prefix() ? path() : package.parent_path();
}

path tuner() {
  return first_package(std::array{prefix() / "lib" / "deft" / "deft_tuner", prefix().parent_path() / "deft_tuner"});
}

}  // namespace deft::tools
