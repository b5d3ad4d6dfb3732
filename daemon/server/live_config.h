// The daemon's configuration, which the operator may change while it runs: by SIGHUP, from the flag file.
//
//   auto live = LiveConfig::load(flags, environment);
//   live->config().text("socket");            // a reference to the config sees later values, too
//   auto kept = live->reload();               // names of options that change with a restart only
//
// New jobs take the new values; jobs that run keep theirs. A file with a mistake changes nothing. Reactor thread.
#pragma once

#include <string>
#include <vector>

#include "core/base/config.h"

namespace deft::daemon {

class LiveConfig {
 public:
  static Result<LiveConfig> load(std::vector<std::string> flags, std::vector<std::string> environment);

  // Stays where it is until this object is moved.
  [[nodiscard]] const Config& config() const { return config_; }

  // Reads flags, variables and the flag file anew. Gives the options whose new value waits for a restart. kInvalid: a mistake; all
  // values are as they were.
  Result<std::vector<std::string>> reload();

 private:
  std::vector<std::string> flags_, environment_;
  Config config_;
};

// Looks for mistakes of a configuration beyond single values: files that cannot be read, links and codecs that do not exist, addresses
// that are not of this machine. An address that is in use is right: a daemon runs already.
Result<void> check_config(const Config& config);

// The file of the option link_costs, which the daemon reads at its start and jobs read anew.
Result<void> check_link_costs(const Config& config);

// The part of it that holds for a daemon that runs: what new jobs need.
Result<void> check_jobs_config(const Config& config);

}  // namespace deft::daemon
