#include "daemon/server/live_config.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/ipc/address.h"
#include "core/ipc/daemon_socket.h"
#include "core/link/nics.h"
#include "core/model/link_costs.h"
#include "core/partition/bucketing.h"
#include "core/sched/merge_groups.h"
#include "daemon/base/settings.h"
#include "daemon/http/http_server.h"
#include "daemon/node/job_recorder.h"
#include "daemon/server/exposure.h"
#include "daemon/wire/control_plane.h"

namespace deft::daemon {
namespace {

// The daemon uses these at its start, and cannot undo that.
constexpr std::array<std::string_view, 8> kWithRestart = {"socket",  "listen",       "secret_file", "insecure",
                                                          "metrics", "memory_limit", "log_format",  "flag_file"};

Result<void> check_control_port(const Config& config) {
  Reactor reactor;
  const auto plane = ControlPlane::open(reactor, {config.text("listen"), config.text("secret_file")});
  if (plane || plane.error().kind == ErrorKind::kExhausted) return {};
  return tl::unexpected(plane.error());
}

Result<void> check_metrics(const std::string& address) {
  const auto http = HttpServer::open(address);
  if (http || http.error().kind == ErrorKind::kExhausted) return {};
  return tl::unexpected(http.error());
}

}  // namespace

Result<LiveConfig> LiveConfig::load(std::vector<std::string> flags, std::vector<std::string> environment) {
  auto config = Config::load(flags, environment, Audience::kDaemon);
  if (!config) return tl::unexpected(config.error());
  LiveConfig live;
  live.flags_ = std::move(flags);
  live.environment_ = std::move(environment);
  live.config_ = *std::move(config);
  return live;
}

Result<std::vector<std::string>> LiveConfig::reload() {
  auto fresh = Config::load(flags_, environment_, Audience::kDaemon);
  if (!fresh) return tl::unexpected(fresh.error());
  if (auto ok = check_jobs_config(*fresh); !ok) return tl::unexpected(ok.error());
  std::vector<std::string> kept, flags = flags_;
  for (const std::string_view name : kWithRestart) {
    if (fresh->text(name) == config_.text(name)) continue;
    kept.emplace_back(name);
    flags.push_back("--" + std::string(name) + "=" + config_.text(name));  // the last flag wins
  }
  if (!kept.empty()) fresh = Config::load(flags, environment_, Audience::kDaemon);
  if (!fresh) return tl::unexpected(fresh.error());
  config_ = *std::move(fresh);
  return kept;
}

Result<void> check_link_costs(const Config& config) {
  if (!config.is_set("link_costs")) return {};
  const auto costs = model::read_link_costs(config.text("link_costs"));
  if (!costs) return tl::unexpected(costs.error().in("option link_costs"));
  return {};
}

Result<void> check_jobs_config(const Config& config) {
  const auto settings = job_settings(config, "");
  if (!settings) return tl::unexpected(settings.error());
  if (auto buckets =
          partition::cut_buckets({}, {}, {.bucketing = config.text("bucketing"), .policy = settings->policy});
      !buckets)
    return tl::unexpected(buckets.error().in("option bucketing"));
  if (auto ok = sched::check_merge_groups(config.text("merge_groups")); !ok) return ok;
  if (config.is_set("trace_steps"))
    if (auto steps = parse_step_range(config.text("trace_steps")); !steps) return tl::unexpected(steps.error());
  const auto links = link::choose_links(config.text("links"), true, link::list_nics());
  if (!links) return tl::unexpected(links.error().in("option links"));
  return {};
}

Result<void> check_config(const Config& config) {
  if (auto ok = check_jobs_config(config); !ok) return ok;
  if (auto ok = check_exposure(config, "control port"); !ok) return ok;
  if (auto ok = check_control_port(config); !ok) return ok;
  if (auto ok = ipc::UnixAddress::of(ipc::socket_path(config.text("socket"))); !ok) return tl::unexpected(ok.error());
  return config.text("metrics") == "off" ? Result<void>() : check_metrics(config.text("metrics"));
}

}  // namespace deft::daemon
