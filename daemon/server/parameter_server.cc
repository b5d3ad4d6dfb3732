#include "daemon/server/parameter_server.h"

#include <glog/logging.h>
#include <systemd/sd-daemon.h>

#include "core/link/ps/server.h"
#include "daemon/base/version.h"

namespace deft::daemon {

Result<void> serve_parameters(const Config& config, int signals_fd, const std::function<void()>& usable) {
  link::ps_backend::Server::Options options;
  options.listen = config.text("listen");
  options.log = [](const std::string& line) { LOG(INFO) << line; };
  options.on_turn = [] { sd_notify(0, "WATCHDOG=1"); };
  options.grace_us = config.seconds_us("timeout");
  auto server = link::ps_backend::Server::open(std::move(options));
  if (!server) return tl::unexpected(server.error());
  LOG(INFO) << "deftd " << kVersion << " is a parameter server, ready on " << (*server)->address()
            << "; settings: " << config.effective();
  LOG_IF(WARNING, config.is_set("secret_file"))
      << "secret_file guards control messages only: this server takes gradients from whoever reaches "
      << (*server)->address();
  usable();
  (*server)->run(signals_fd);
  return {};
}

}  // namespace deft::daemon
