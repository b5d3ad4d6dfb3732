// Runs a command and waits for its end.
//
//   auto ok = run_command({"python3", "train.py"}, {{"DEFT_POLICY", "fifo"}}, {.so = "so nothing was compared", ...});
//
// A signal that ends this program ends the command first, so that its files can be removed.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace deft::tools {

// What errors say beside the command's name.
struct ChildWords {
  const char* so;           // "so nothing was compared"
  const char* fix_missing;  // of a command that cannot be started
  const char* fix_failed;
};

// `variables` are set beside those of this process. The command's output goes to the error output, so that the output of this program stays
// its own. kInvalid: it cannot be started. kUnavailable: it failed, or a signal has ended it, and this program is to end, too.
Result<void> run_command(const std::vector<std::string>& command, const std::map<std::string, std::string>& variables,
                         const ChildWords& words);

}  // namespace deft::tools
