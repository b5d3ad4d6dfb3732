#include "tools/flag_file.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

namespace deft::tools {
namespace {

tl::unexpected<Error> not_written(const std::string& path) {
  return fail(ErrorKind::kInvalid, "cannot write " + path + ": " + std::strerror(errno),
              "give a file in a folder in which you may write (-o FILE)");
}

std::string without_spaces(std::string text) {
  std::erase_if(text, [](unsigned char c) { return std::isspace(c) != 0; });
  return text;
}

// No file says nothing, and so does one that cannot be read.
OptionValues options_in(const std::string& path) {
  OptionValues options;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::string text = without_spaces(line.substr(0, line.find('#')));
    const auto equals = text.find('=');
    if (equals != std::string::npos) options[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return options;
}

}  // namespace

std::string variable_of(const std::string& option) {
  std::string name = "DEFT_" + option;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

std::string as_variables(const OptionValues& options) {
  std::string text;
  for (const auto& [name, value] : options) text += (text.empty() ? "" : " ") + variable_of(name) + "=" + value;
  return text;
}

std::string variables_in_words(const OptionValues& options) {
  std::string text;
  for (auto at = options.begin(); at != options.end(); ++at) {
    const bool is_last = std::next(at) == options.end();
    text += (text.empty() ? "" : is_last ? " and " : ", ") + variable_of(at->first);
  }
  return text;
}

Result<void> check_flag_file(const std::string& path) {
  const bool was_there = ::access(path.c_str(), F_OK) == 0;
  if (!std::ofstream(path, std::ios::app)) return not_written(path);
  if (!was_there) ::unlink(path.c_str());
  return {};
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
