#include "daemon/server/exposure.h"

#include <glog/logging.h>

#include "core/link/address.h"
#include "core/link/curve/curve_key.h"

namespace deft::daemon {

Result<void> check_exposure(const Config& config, const std::string& port) {
  if (const std::string readers = link::other_readers(config.text("secret_file")); !readers.empty())
    LOG(WARNING) << "the key in " << config.text("secret_file") << " can be read by " << readers
                 << ", who can join and disturb every job: chmod 0400, for the user who runs deftd";
  const std::string& listen = config.text("listen");
  if (auto endpoint = link::listening_endpoint(listen); !endpoint) return tl::unexpected(endpoint.error());
  if (link::is_loopback_address(listen) || config.is_set("secret_file")) return {};
  const std::string what = "other machines reach the " + port + " " + listen + ", and no key guards it";
  if (config.text("insecure") != "on")
    return fail(
        ErrorKind::kInvalid, what,
        "give all daemons of a job one key: (umask 077; deft keygen >FILE), --secret-file=FILE; or start them with "
        "--insecure=on if nobody else is in this network");
  LOG(WARNING) << what << " (insecure=on)";
  return {};
}

}  // namespace deft::daemon
