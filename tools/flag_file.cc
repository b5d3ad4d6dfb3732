#include "tools/flag_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

#include "core/base/config.h"
#include "core/base/text.h"
#include "core/base/text_file.h"

namespace deft::tools {
namespace {

tl::unexpected<Error> not_written(const std::string& path) {
  return fail(ErrorKind::kInvalid, "cannot write " + path + ": " + std::strerror(errno),
              "give a file in a folder in which you may write (-o FILE)");
}

// No file says nothing, and so does one that cannot be read.
OptionValues options_in(const std::string& path) {
  OptionValues options;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const auto text = without_comment(line);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    options[std::string(trimmed(text.substr(0, equals)))] = trimmed(text.substr(equals + 1));
  }
  return options;
}

}  // namespace

std::string as_variables(const OptionValues& options) {
  return joined(options, " ", [](const auto& option) { return as_variable(option.first) + "=" + option.second; });
}

std::string variables_in_words(const OptionValues& options) {
  std::string text;
  for (auto at = options.begin(); at != options.end(); ++at) {
    const bool is_last = std::next(at) == options.end();
    text += (text.empty() ? "" : is_last ? " and " : ", ") + as_variable(at->first);
  }
  return text;
}

Result<void> write_flag_file(const std::string& path, const std::vector<std::string>& comments,
                             const OptionValues& options) {
  std::ofstream out(path);
  for (const auto& line : comments) out << "# " << line << '\n';
  for (const auto& [name, value] : options) out << name << " = " << value << '\n';
  if (!out.flush()) return not_written(path);
  return {};
}

bool remove_old_flag_file(const std::string& path, const OptionValues& options_of_the_job) {
  const auto said = options_in(path);
  const bool is_own = std::ranges::all_of(said, [&](const auto& option) {
    const auto own = options_of_the_job.find(option.first);
    return own != options_of_the_job.end() && own->second == option.second;
  });
  return !is_own && ::unlink(path.c_str()) == 0;
}

}  // namespace deft::tools
