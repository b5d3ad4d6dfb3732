// Reads what the name of a job tells.
#pragma once

#include <string>
#include <string_view>

namespace deft::model {

// The job that `name`, as JOB.set1, is a process set of (plugins/python/deft/process_sets.py); empty: it is none.
inline std::string job_of_set(std::string_view name) {
  constexpr std::string_view kSet = ".set";
  const std::size_t at = name.rfind(kSet);
  if (at == std::string_view::npos) return {};
  const std::string_view number = name.substr(at + kSet.size());
  const bool is_number = !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
  return is_number ? std::string(name.substr(0, at)) : std::string();
}

}  // namespace deft::model
