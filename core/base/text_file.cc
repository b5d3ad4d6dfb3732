#include "core/base/text_file.h"

#include <fstream>

namespace deft {

Result<std::string> read_text_file(const std::string& what, const std::string& path, std::size_t most_bytes,
                                   const std::string& fix) {
  const std::string cannot = "cannot read " + what + " " + path;
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(ErrorKind::kInvalid, cannot, fix);
  std::string text;
  char block[1 << 16];
  while (in.read(block, sizeof block) || in.gcount() > 0) {
    text.append(block, static_cast<std::size_t>(in.gcount()));
    if (text.size() > most_bytes)
      return fail(ErrorKind::kInvalid, cannot + ": it has more than " + std::to_string(most_bytes >> 20) + " MiB",
                  "is it the right file?");
  }
  if (in.bad()) return fail(ErrorKind::kInvalid, cannot, "it is a folder, or its disk fails");
  return text;
}

std::string_view without_comment(std::string_view line) {
  for (std::size_t at = line.find('#'); at != std::string_view::npos; at = line.find('#', at + 1))
    if (at == 0 || line[at - 1] == ' ' || line[at - 1] == '\t') return line.substr(0, at);
  return line;
}

}  // namespace deft
