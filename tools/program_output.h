// Runs another program, and gives what it prints.
#pragma once

#include <string>

namespace deft::tools {

struct ProgramOutput {
  int status = -1;   // the exit status; -1 if there is none
  std::string text;  // standard output without the last line breaks
};

// Runs a command of the shell and waits for its end.
ProgramOutput output_of(const std::string& command);

}  // namespace deft::tools
