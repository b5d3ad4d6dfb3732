// deft tune: becomes the Python program tools/deft_tuner, which talks to the job through `deft status` and `deft set`.
#include "tools/tune.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "core/base/word_pointers.h"
#include "tools/installed.h"

namespace deft::tools {

Result<int> run_tune(Arguments arguments) {
  const auto folder = tuner();
  if (folder.empty())
    return fail(ErrorKind::kUnavailable, "the folder deft_tuner is not beside this program",
                "build it by scripts/build deft_tool, or install the package of Deft as a whole");
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return fail(ErrorKind::kUnavailable, "cannot find this program: " + error.message());
  std::vector<std::string> words = {"python3", folder.string(), "--deft", program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  ::execvp(words.front().c_str(), pointers_to(words).data());
  return fail(ErrorKind::kUnavailable, "cannot run python3: " + std::generic_category().message(errno),
              "deft tune needs Python 3.11 or newer on the PATH");
}

}  // namespace deft::tools
