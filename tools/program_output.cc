#include "tools/program_output.h"

#include <sys/wait.h>

#include <array>
#include <cstdio>

namespace deft::tools {

ProgramOutput output_of(const std::string& command) {
  ProgramOutput out;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 512> piece{};
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) out.text += piece.data();
  const int status = pclose(pipe);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  while (!out.text.empty() && out.text.back() == '\n') out.text.pop_back();
  return out;
}

}  // namespace deft::tools
