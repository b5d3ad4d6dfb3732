// The flag file (DEFT_FLAG_FILE) in which deft optimize leaves the settings that it has found.
//
//   if (auto ok = check_output(path); !ok) ...               // before the search: the file can be written (command.h)
//   write_flag_file(path, {"83 ms a step"}, options);
//   if (remove_old_flag_file(path, options_of_the_job)) ...  // nothing was found: what another job got there is no advice for this one
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace deft::tools {

using OptionValues = std::map<std::string, std::string>;  // by the option's name

// "DEFT_BUCKETING=ddp DEFT_POLICY=p3", for a shell.
std::string as_variables(const OptionValues& options);
// "DEFT_BUCKETING and DEFT_POLICY". `options` is not empty.
std::string variables_in_words(const OptionValues& options);

// `comments` are lines.
Result<void> write_flag_file(const std::string& path, const std::vector<std::string>& comments,
                             const OptionValues& options);
// The file stays if the job has run with all that it says. True: it is gone.
bool remove_old_flag_file(const std::string& path, const OptionValues& options_of_the_job);

}  // namespace deft::tools
