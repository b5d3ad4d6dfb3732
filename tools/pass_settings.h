// Settings of the search in the words of a user's passes (plugins/python/deft/passes.py): what passes are told, and what they propose.
//
//   const PassSettings words(measured, is_running);
//   words.told(best)                              // {"policy": "fifo", "bucket_bytes": 0, ...}
//   words.proposed("my_pass", changes, best)      // the best settings with these changes
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/optimize/search.h"
#include "core/replay/measured_job.h"

namespace deft::tools {

class PassSettings {
 public:
  // `is_running`: a running job keeps its buckets, its links, and what its codec encodes.
  PassSettings(const replay::MeasuredJob& measured, bool is_running);

  [[nodiscard]] nlohmann::json told(const optimize::Settings& settings) const;

  // kInvalid, naming the pass, for what the job cannot have.
  [[nodiscard]] Result<optimize::Settings> proposed(const std::string& pass, const nlohmann::json& changes,
                                                    const optimize::Settings& best) const;

 private:
  Result<void> change(const std::string& name, const nlohmann::json& value, optimize::Settings& settings) const;
  Result<void> change_policy(const nlohmann::json& value, optimize::Settings& settings) const;
  Result<void> change_links(const nlohmann::json& value, optimize::Settings& settings) const;
  Result<void> change_floor(const nlohmann::json& value, optimize::Settings& settings) const;
  [[nodiscard]] std::string kept_by_running(const optimize::Settings& before, const optimize::Settings& after) const;

  bool is_running_;
  std::vector<std::string> links_;  // that the job used
  std::string why_links_stay_;
  std::string compression_;                 // the job's own
  std::optional<std::uint64_t> own_floor_;  // empty: the trace does not tell what another floor would change
};

}  // namespace deft::tools
