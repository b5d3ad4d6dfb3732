#include "core/trace/unfinished_trace.h"

#include <filesystem>

#include "core/trace/trace_file.h"

namespace deft::trace {

Result<std::string> unfinished_trace(const std::string& path) {
  namespace fs = std::filesystem;
  const auto own = glance_at_trace(path);
  if (!own) return tl::unexpected(own.error());
  if (!own->complete) return path;
  std::error_code hidden;
  for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path(), hidden)) {
    if (entry.path().extension() != ".trace") continue;
    const auto other = glance_at_trace(entry.path().string());
    if (other && !other->complete && other->header.job == own->header.job &&
        other->header.incarnation == own->header.incarnation)
      return entry.path().string();
  }
  return std::string();
}

}  // namespace deft::trace
