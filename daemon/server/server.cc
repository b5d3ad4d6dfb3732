#include "daemon/server/server.h"

#include <glog/logging.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <random>

#include "core/ipc/daemon_socket.h"
#include "daemon/base/version.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kPutAwayUs = 20'000;

std::uint64_t random_number() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

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
  if (auto ok = reactor.watch(raw->listener_.descriptor(), EPOLLIN, [raw](std::uint32_t) { raw->accept(); }); !ok)
    return tl::unexpected(ok.error());
  raw->control_->on_message = [raw](const Peer& from, std::span<const std::byte> message) {
    raw->on_control(from, message);
  };
  return server;
}

Server::Server(Reactor& reactor, const Config& config, ipc::Listener listener, std::unique_ptr<ControlPlane> control)
    : reactor_(reactor),
      config_(config),
      budget_(memory_limit(config.bytes("memory_limit"))),
      listener_(std::move(listener)),
      control_(std::move(control)),
      context_{reactor,
               *control_,
               config,
               host_name(),
               random_number(),
               [this] { return next_incarnation_++; },
               [this](Job& job) { on_job_ended(job); }},
      versions_(context_.host),
      started_us_(MonotonicClock::now()),
      next_incarnation_(random_number() | 1) {}

Server::~Server() {
  reactor_.cancel(put_away_timer_);
  reactor_.unwatch(listener_.descriptor());
  jobs_.clear();
  ended_.clear();
  sessions_.clear();
}

void Server::accept() {
  while (true) {
    auto channel = listener_.accept();
    if (!channel) {
      LOG_EVERY_N(ERROR, 100) << "a worker could not be accepted: " << channel.error().message();
      return;
    }
    if (!channel->has_value()) return;
    const auto session =
        std::make_shared<Session>(reactor_, budget_, *this, std::move(**channel), context_.daemon_epoch);
    sessions_[session.get()] = session;
    reactor_.run_for(session, [&] {
      auto ok = session->start();
      if (!ok) session->close(ok.error().in("serve a worker"));
    });
  }
}

std::shared_ptr<Job> Server::job_for(Session& session, Result<void>& result) {
  const auto it = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& job) {
    return job->members().identity().name == session.hello().job && job->members().state() != JobState::kEnded &&
           job->members().left().empty();
  });
  if (it != jobs_.end()) return *it;
  auto settings = job_settings(config_, session.hello().settings);
  if (!settings) {
    result = tl::unexpected(settings.error());
    return nullptr;
  }
  LOG(INFO) << "[" << session.hello().job << "] " << session.describe() << " begins a job of " << session.hello().world
            << " workers, " << session.hello().local_size << " here";
  jobs_.push_back(std::make_shared<Job>(context_, session, std::move(*settings)));
  return jobs_.back();
}

void Server::session_attached(Session& session) {
  Result<void> result;
  if (shutting_down_) result = fail(ErrorKind::kUnavailable, "the daemon is shutting down");
  const auto job = result ? job_for(session, result) : nullptr;
  if (job) {
    session.serve(job->port());
    reactor_.run_for(job->port(), [&] { result = job->attach(session); });
  }
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

void Server::on_control(const Peer& from, std::span<const std::byte> message) {
  const auto received = wire::Received::parse(message);
  if (!received) return reject_control(received.error().what);
  if (const auto error = versions_.mismatch(*received)) return on_other_version(from, *received, *error);
  const auto jobs = jobs_;  // a job may end while it handles the message
  for (const auto& job : jobs) {
    if (!job->accepts(from, *received)) continue;
    reactor_.run_for(job->port(), [&] {
      if (!job->receive(from, *received)) reject_control("its sender has not joined the job");
    });
    return;
  }
  ++control_unclaimed_;
}

void Server::on_other_version(const Peer& from, const wire::Received& received, const Error& error) {
  reject_control(error.what);
  if (const auto answer = versions_.answer(from, received)) control_->send(from, *answer);
  const auto jobs = jobs_;
  for (const auto& job : jobs)
    reactor_.run_for(job->port(), [&] { job->peer_mismatched(from, received.header(), error); });
}

void Server::reject_control(const std::string& why) {
  ++control_rejected_;
  LOG_EVERY_N(WARNING, 1000) << "a control message was rejected (" << control_rejected_ << " until now): " << why;
}

void Server::on_job_ended(Job& job) {
  const auto it = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& j) { return j.get() == &job; });
  if (it == jobs_.end()) return;
  ++jobs_served_;
  ended_.splice(ended_.end(), jobs_, it);
  if (put_away_timer_ == 0) put_away_timer_ = reactor_.after(kPutAwayUs, [this] { put_away(); });
}

void Server::put_away() {
  put_away_timer_ = 0;
  std::erase_if(ended_, [](const auto& job) { return job->drivers_finished(); });
  if (!ended_.empty()) put_away_timer_ = reactor_.after(kPutAwayUs, [this] { put_away(); });
  stop_if_done();
}

void Server::stop_if_done() {
  if (shutting_down_ && jobs_.empty() && ended_.empty()) reactor_.stop();
}

void Server::shut_down() {
  const bool again = shutting_down_;
  shutting_down_ = true;
  const auto end_all = [this] {
    const auto jobs = jobs_;
    for (const auto& job : jobs)
      job->fail({ErrorKind::kLost, "the daemon on " + context_.host + " was stopped", "", {}});
    reactor_.after(kPutAwayUs, [this] { reactor_.stop(); });
  };
  if (again) return end_all();
  LOG(INFO) << "shutting down" << (jobs_.empty() ? "" : " when the running jobs have ended");
  if (!jobs_.empty()) reactor_.after(config_.seconds_us("timeout"), end_all);
  stop_if_done();
}

std::string Server::session_status() {
  nlohmann::json json{{"version", kVersion},
                      {"pid", getpid()},
                      {"host", context_.host},
                      {"uptime_s", (MonotonicClock::now() - started_us_) / 1'000'000},
                      {"listen", config_.text("listen")},
                      {"socket", ipc::socket_path(config_.text("socket"))},
                      {"sessions", sessions_.size()},
                      {"jobs_served", jobs_served_},
                      {"clients_dropped", clients_dropped_},
                      {"callbacks_failed", reactor_.failed_callbacks()},
                      {"control_messages_rejected", control_->rejected_messages() + control_rejected_},
                      {"control_messages_unclaimed", control_unclaimed_},
                      {"memory_bytes", budget_.used_bytes()},
                      {"memory_limit_bytes", budget_.limit_bytes()},
                      {"configuration", config_.effective()},
                      {"jobs", nlohmann::json::array()}};
  for (const auto& job : jobs_) json["jobs"].push_back(job->status());
  // A name that a peer chose may be no UTF-8: it is shown with replacement characters.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace deft::daemon
