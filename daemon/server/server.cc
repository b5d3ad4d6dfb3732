#include "daemon/server/server.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "core/base/control_groups.h"
#include "core/base/host_name.h"
#include "core/ipc/daemon_socket.h"
#include "core/link/peer_sockets.h"
#include "daemon/base/state_folder.h"
#include "daemon/base/version.h"
#include "daemon/server/exposure.h"

namespace deft::daemon {
namespace {

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// Service managers kill after a minute or so. Who wants to wait longer for the jobs drains the daemon.
constexpr TimeUs kMostStopUs = 30'000'000;
constexpr TimeUs kFarewellUs = 20'000;  // for errors to leave, before the daemon stops

std::uint64_t memory_limit(std::uint64_t configured_bytes) {
  if (configured_bytes != 0) return configured_bytes;
  auto half =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
  if (const auto group = ControlGroups().memory_limit_bytes()) half = std::min(half, *group / 2);
  return half;
}

nlohmann::json control_drops(const ControlPlane& control, const ControlInbox::Drops& drops) {
  return {{"unreadable", control.refused().messages + drops.unreadable},
          {"version", drops.other_version},
          {"stranger", drops.stranger},
          {"unclaimed", drops.unclaimed},
          {"key", control.refused().locked_out},
          {"handshake", control.refused().handshakes},
          {"endless", control.endless()}};
}

nlohmann::json ring_status() {
  const RingCounts counts = ring_counts();
  return {{"overflows", counts.overflows}, {"drops", {{"unread", counts.unread}, {"corrupt", counts.corrupt}}}};
}

nlohmann::json link_strangers() {
  const link::StrangerCounts counts = link::stranger_counts();
  return {{"wrong", counts.wrong}, {"late", counts.late}, {"crowded_out", counts.crowded_out}};
}

JobContext context_of_jobs(Reactor& reactor, ControlPort& control, const Config& config,
                           std::shared_ptr<UserQuotas> quotas) {
  JobContext context{.reactor = reactor, .control = control, .config = config, .host = host_name()};
  context.links = link_maker(config.text("secret_file"), std::move(quotas));
  context.state_folder = state_folder();
  return context;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::open(Reactor& reactor, const Config& config) {
  if (auto ok = check_exposure(config, "control port"); !ok) return tl::unexpected(ok.error());
  auto listener = ipc::Listener::bind(ipc::socket_path(config.text("socket")));
  if (!listener) return tl::unexpected(listener.error());
  auto control = ControlPlane::open(reactor, {config.text("listen"), config.text("secret_file")});
  if (!control) return tl::unexpected(control.error());
  std::unique_ptr<Server> server(new Server(reactor, config, std::move(*listener), std::move(*control)));
  Server* const raw = server.get();
  if (auto ok = raw->acceptor_.start(); !ok) return tl::unexpected(ok.error());
  raw->control_->on_message = [raw](const Peer& from, std::span<const std::byte> message) {
    return raw->inbox_.receive(from, message);
  };
  raw->control_->on_stuck = [raw](const Peer& peer) { raw->jobs_.peer_stuck(peer); };
  return server;
}

Server::Server(Reactor& reactor, const Config& config, ipc::Listener listener, std::unique_ptr<ControlPlane> control)
    : reactor_(reactor),
      config_(config),
      budget_(memory_limit(config.bytes("memory_limit"))),
      users_{std::make_shared<UserQuotas>(quota_limits(config)), {}},
      control_(std::move(control)),
      acceptor_(reactor, std::move(listener), [this](ipc::MessageSocket socket) { take_client(std::move(socket)); }),
      this_{random_number(), reactor.now_us()},
      jobs_(context_of_jobs(reactor, *control_, config, users_.quotas), random_number() | 1,
            [this] { stop_if_done(); }),
      inbox_(*control_, jobs_, reactor.clock()) {}

void Server::take_client(ipc::MessageSocket socket) {
  const auto peer = socket.peer();
  if (!peer) return;
  const auto account = std::make_shared<QuotaAccount>(users_.quotas, peer->uid);
  auto room = account->take(Quota::kSessions, 1);
  if (room) room = account->take(Quota::kDescriptors, 1);
  if (!room) return turn_away(std::move(socket), peer->uid, room.error());
  const auto session = std::make_shared<WorkerSession>(reactor_, WorkerSession::Means{budget_, account}, *this,
                                                       std::move(socket), this_.epoch);
  sessions_[session.get()] = session;
  run_for(session, "a new client", [&] {
    auto ok = session->start();
    if (!ok) session->close(ok.error().in("serve a worker"));
  });
}

void Server::turn_away(ipc::MessageSocket socket, uid_t user, const Error& error) {
  users_.refusals.add(user, error, reactor_.now_us());
  WorkerConnection connection(reactor_, std::move(socket), nullptr, {});
  connection.send_error(error, 0);
}

void Server::session_attached(WorkerSession& session) {
  // A job that runs may still get its last workers, and process sets.
  const bool refused = intake_ != Intake::kOpen && !jobs_.has(session.hello().job, session.peer().uid);
  const Result<void> result = refused ? fail(ErrorKind::kUnavailable,
                                             std::string("the daemon takes no new jobs: it ") +
                                                 (intake_ == Intake::kDraining ? "drains" : "is shutting down"),
                                             "use another node, or ask its administrator (deft drain --undo)")
                                      : jobs_.attach(session);
  if (result || session.closed()) return;
  session.send_error(result.error(), 0);
  session.close(result.error().in(session.describe()));
}

void Server::session_ended(WorkerSession& session, const Error& reason) {
  const bool asked_only = session.hello().job.empty() && reason.kind == ErrorKind::kLost;  // deft status has gone
  if (!reason.what.empty() && !asked_only) ++clients_dropped_[static_cast<std::size_t>(reason.kind)];
  if (!reason.what.empty() && reason.kind != ErrorKind::kLost)
    users_.refusals.add(session.peer().uid, reason, reactor_.now_us());
  // Not now: the session's own code is still running.
  reactor_.post([this, key = &session] { sessions_.erase(key); });
}

void Server::stop_if_done() {
  if (intake_ == Intake::kShuttingDown && jobs_.empty()) reactor_.stop();
}

void Server::end_all() {
  jobs_.fail_all({ErrorKind::kLost, "the daemon on " + jobs_.host() + " was stopped", "", {}});
  reactor_.after(kFarewellUs, [this] { reactor_.stop(); });
}

void Server::shut_down() {
  if (std::exchange(intake_, Intake::kShuttingDown) == Intake::kShuttingDown) return end_all();
  LOG(INFO) << "shutting down" << (jobs_.running() ? " when the running jobs have ended" : "");
  if (!jobs_.empty()) reactor_.after(stop_timeout_us(), [this] { end_all(); });  // also for a thread that hangs
  stop_if_done();
}

TimeUs Server::stop_timeout_us() const { return std::min(kMostStopUs, config_.seconds_us("timeout")); }

void Server::set_draining(bool draining) {
  if (intake_ == Intake::kShuttingDown) return;
  intake_ = draining ? Intake::kDraining : Intake::kOpen;
  LOG(INFO) << (draining ? "drains: no new jobs are taken" : "takes new jobs");
}

// Root and the daemon's own user see everything, and others their own jobs.
std::string Server::session_status(uid_t user) {
  const bool is_operator = user == 0 || user == geteuid();
  const std::optional<uid_t> only = is_operator ? std::nullopt : std::optional(user);
  nlohmann::json json{{"version", kVersion},
                      {"pid", getpid()},
                      {"host", jobs_.host()},
                      {"uptime_s", (reactor_.now_us() - this_.started_us) / 1'000'000},
                      {"listen", config_.text("listen")},
                      {"socket", ipc::socket_path(config_.text("socket"))},
                      {"metrics", this_.metrics},
                      {"sessions", sessions_.size()},
                      {"takes_jobs", intake_ == Intake::kOpen},
                      {"jobs_served", jobs_.history().count()},
                      {"clients_dropped", clients_dropped_[static_cast<std::size_t>(ErrorKind::kViolation)]},
                      {"sessions_lost", by_reason(clients_dropped_)},
                      {"refusals", users_.refusals.status(only)},
                      {"users", users_.quotas->status(only)},
                      {"accept_failures", acceptor_.failures()},
                      {"callbacks_failed", failed_callbacks()},
                      {"control_messages_rejected", control_->refused().messages + inbox_.rejected()},
                      {"control_messages_unclaimed", inbox_.unclaimed()},
                      {"control_drops", control_drops(*control_, inbox_.drops())},
                      {"link_strangers", link_strangers()},
                      {"rings", ring_status()},
                      {"memory_bytes", budget_.used_bytes()},
                      {"memory_limit_bytes", budget_.limit_bytes()},
                      {"reactor", reactor_.meter().json(reactor_.clock().machine_us())},
                      {"configuration", config_.effective()},
                      {"ended_jobs", jobs_.history().newest(reactor_.now_us(), only)},
                      {"jobs_ended", jobs_.history().by_reason()},
                      {"jobs_closing", jobs_.closing()},
                      {"jobs", jobs_.status(only)}};
  // A name that a peer chose may be no UTF-8: it is shown with replacement characters.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace deft::daemon
