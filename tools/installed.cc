#include "tools/installed.h"

#include <array>
#include <system_error>

namespace deft::tools {

std::filesystem::path python_package() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const auto prefix = program.parent_path().parent_path();
  for (const auto& folder : std::array{prefix / "python" / "deft", prefix / "lib" / "deft" / "python" / "deft"})
    if (std::filesystem::exists(folder / "__init__.py", error)) return folder;
  return {};
}

}  // namespace deft::tools
