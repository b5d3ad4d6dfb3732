#include "daemon/server/server.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <random>

#include "core/ipc/daemon_socket.h"
#include "daemon/base/version.h"

namespace deft::daemon {
namespace {

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

constexpr TimeUs kFarewellUs = 20'000;  // for errors to leave, before the daemon stops

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "(unknown host)";
}

std::uint64_t memory_limit(std::uint64_t configured_bytes) {
  if (configured_bytes != 0) return configured_bytes;
  auto half =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
  std::uint64_t group = 0;  // of the container, where there is one
  if (std::ifstream in("/sys/fs/cgroup/memory.max"); in >> group) half = std::min(half, group / 2);
  return half;
}

}  // namespace

Result<std::unique_ptr<Server>> Server::open(Reactor& reactor, const Config& config) {
  auto listener = ipc::Listener::bind(ipc::socket_path(config.text("socket")));
  if (!listener) return tl::unexpected(listener.error());
  auto control = ControlPlane::open(reactor, {config.text("listen"), config.text("secret_file")});
  if (!control) return tl::unexpected(control.error());
  std::unique_ptr<Server> server(new Server(reactor, config, std::move(*listener), std::move(*control)));
  Server* const raw = server.get();
  if (auto ok = raw->acceptor_.start(); !ok) return tl::unexpected(ok.error());
  raw->control_->on_message = [raw](const Peer& from, std::span<const std::byte> message) {
    raw->inbox_.receive(from, message);
  };
  return server;
}

Server::Server(Reactor& reactor, const Config& config, ipc::Listener listener, std::unique_ptr<ControlPlane> control)
    : reactor_(reactor),
      config_(config),
      budget_(memory_limit(config.bytes("memory_limit"))),
      control_(std::move(control)),
      acceptor_(reactor, std::move(listener), [this](ipc::MessageSocket socket) { take_client(std::move(socket)); }),
      daemon_epoch_(random_number()),
      started_us_(reactor.now_us()),
      jobs_({reactor, *control_, config, host_name()}, random_number() | 1, [this] { stop_if_done(); }),
      inbox_(*control_, jobs_) {}

void Server::take_client(ipc::MessageSocket socket) {
  const auto session = std::make_shared<Session>(reactor_, budget_, *this, std::move(socket), daemon_epoch_);
  sessions_[session.get()] = session;
  run_for(session, "a new client", [&] {
    auto ok = session->start();
    if (!ok) session->close(ok.error().in("serve a worker"));
  });
}

void Server::session_attached(Session& session) {
  const Result<void> result =
      shutting_down_ ? fail(ErrorKind::kUnavailable, "the daemon is shutting down") : jobs_.attach(session);
  if (result || session.closed()) return;
  LOG(WARNING) << session.describe() << " is refused: " << result.error().message();
  session.send_error(result.error(), 0);
  session.close(result.error().in(session.describe()));
}

void Server::session_ended(Session& session, const Error& reason) {
  if (reason.kind == ErrorKind::kViolation) ++clients_dropped_;
  // Not now: the session's own code is still running.
  reactor_.post([this, key = &session] { sessions_.erase(key); });
}

void Server::stop_if_done() {
  if (shutting_down_ && jobs_.empty()) reactor_.stop();
}

void Server::end_all() {
  jobs_.fail_all({ErrorKind::kLost, "the daemon on " + jobs_.host() + " was stopped", "", {}});
  reactor_.after(kFarewellUs, [this] { reactor_.stop(); });
}

void Server::shut_down() {
  if (std::exchange(shutting_down_, true)) return end_all();
  LOG(INFO) << "shutting down" << (jobs_.running() ? " when the running jobs have ended" : "");
  if (jobs_.running()) reactor_.after(config_.seconds_us("timeout"), [this] { end_all(); });
  stop_if_done();
}

std::string Server::session_status() {
  nlohmann::json json{{"version", kVersion},
                      {"pid", getpid()},
                      {"host", jobs_.host()},
                      {"uptime_s", (reactor_.now_us() - started_us_) / 1'000'000},
                      {"listen", config_.text("listen")},
                      {"socket", ipc::socket_path(config_.text("socket"))},
                      {"sessions", sessions_.size()},
                      {"jobs_served", jobs_.served()},
                      {"clients_dropped", clients_dropped_},
                      {"accept_failures", acceptor_.failures()},
                      {"callbacks_failed", failed_callbacks()},
                      {"control_messages_rejected", control_->rejected_messages() + inbox_.rejected()},
                      {"control_messages_unclaimed", inbox_.unclaimed()},
                      {"memory_bytes", budget_.used_bytes()},
                      {"memory_limit_bytes", budget_.limit_bytes()},
                      {"configuration", config_.effective()},
                      {"jobs", jobs_.status()}};
  // A name that a peer chose may be no UTF-8: it is shown with replacement characters.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace deft::daemon
