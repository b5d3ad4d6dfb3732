#include "daemon/node/job.h"

#include <glog/logging.h>
#include <glog/raw_logging.h>

#include <algorithm>
#include <exception>

#include "core/base/text.h"
#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

Membership members_of(const WorkerPort& first, JobSettings settings) {
  const WorkerHello& a = first.hello();
  JobIdentity identity{a.job, first.peer().uid, a.world, a.local_size, a.leader, settings.options.text("job_token")};
  return {std::move(identity), std::move(settings)};
}

FailureDetector::Limits limits_of(const JobSettings& settings) {
  return {.silence_us = settings.silence_us(),
          .answer_us = settings.timeout_us / 3,
          .ended_us = 0,
          .give_up_us = settings.timeout_us * 2 / 3};
}

std::string leader_name(const Membership& members) {
  const std::string& address = members.identity().leader;
  return address.empty() ? "(unset)" : address;
}

// A daemon that stood still finds that others have given it up, and their connections closed: they are not to blame.
Error name_standstill(const Error& error, const JobContext& context, TimeUs timeout_us) {
  const TimeUs still_us = context.reactor.clock().stood_still_us(timeout_us);
  if (still_us == 0) return error;
  return error.in("after deftd on " + context.host + " had stood still for " + std::to_string(still_us / 1000) + " ms");
}

nlohmann::json workers_status(const Membership& members, const JobParts* parts) {
  nlohmann::json workers = nlohmann::json::array();
  for (std::size_t local = 0; local < members.workers().size(); ++local) {
    const auto& worker = members.workers()[local];
    workers.push_back({{"rank", worker.rank}, {"pid", worker.pid}, {"attached", worker.port != nullptr}});
    if (!parts) continue;
    const Measurements::Steps steps = parts->measurements.steps(local);
    workers.back().update({{"steps", steps.ended}, {"compute_us", steps.compute_us}, {"waited_us", steps.waited_us}});
  }
  return workers;
}

// The job may have ended while the rings were made: its workers have heard why, and are not welcome any more.
void welcome(const std::weak_ptr<Job>& weak, WorkerPort& worker, const JobStart& start, Result<void> rings) {
  const auto job = weak.lock();
  if (!job || job->members().state() != JobState::kRunning) return;
  name_callback("a worker's welcome");
  const Result<void> welcomed = rings ? worker.welcome(start) : std::move(rings);
  if (!welcomed) job->fail(welcomed.error().in("start " + worker.describe()));
}

// One worker after the other, so that many of them do not take the processor from the event loop. The next one's turn comes when the
// callback is dropped, because it is not called if its worker dies.
void welcome_from(Reactor& reactor, const std::weak_ptr<Job>& weak, const std::shared_ptr<const JobStart>& start,
                  std::size_t local) {
  const auto job = weak.lock();
  if (!job || job->members().state() != JobState::kRunning) return;
  const auto& workers = job->members().workers();
  while (local < workers.size() && workers[local].port == nullptr) ++local;
  if (local == workers.size()) return;
  WorkerPort* const port = workers[local].port;
  const auto go_on = [&reactor, weak, start, next = local + 1, owner = current_owner()](void*) {  // any thread
    if (weak.expired()) return;
    try {
      reactor.post([&reactor, weak, start, next] { welcome_from(reactor, weak, start, next); }, owner);
    } catch (const std::exception& e) {  // no memory: the other workers wait for as long as their timeout
      RAW_LOG(ERROR, "the next worker of a job is not welcomed: %s", e.what());
    }
  };
  port->make_rings([weak, port, start, turn = std::shared_ptr<void>(nullptr, go_on)](Result<void> rings) {
    welcome(weak, *port, *start, std::move(rings));
  });
}

// All workers here left `since_us` ago. Until those of other nodes have, too, they may still receive the last results, and the end of this
// node's links would fail all that these nodes have in flight, from others too.
bool may_end(const Membership& members, TimeUs since_us) {
  return members.left().size() == members.identity().world || since_us > members.settings().silence_us();
}

}  // namespace

Job::Job(JobContext& context, const WorkerPort& first, JobSettings settings)
    : context_(context),
      config_(context.config),
      members_(members_of(first, std::move(settings))),
      line_(context.reactor, context.control, members_.identity().name,
            [this](wire::ToNode message) { deliver(std::move(message)); }),
      joining_(context.reactor, members_, line_, *this, context.host, context.links),
      worker_events_(members_, parts_, line_, *this, context.host),
      messages_(members_, parts_, line_, *this, context.host) {}

Job::~Job() { context_.reactor.cancel(tick_timer_); }

Result<void> Job::attach(WorkerPort& worker) {
  joining_.begin();
  auto wishes = job_settings(config_, worker.hello().settings);
  if (!wishes) return tl::unexpected(wishes.error());
  if (auto ok = members_.admit(worker, *wishes); !ok) return ok;
  if (auto ok = members_.attach(worker); !ok) {
    fail(ok.error());  // the others would wait in vain
    return ok;
  }
  if (members_.complete()) join();
  return {};
}

void Job::join() {
  members_.advance(JobState::kJoining);
  if (members_.has_rank(0)) {
    const JobIdentity& id = members_.identity();
    line_.lead({id.name, context_.make_incarnation(), id.world, {id.uid, id.token}, joining_.gathered_by_us()},
               members_.settings());
  } else if (auto ok = line_.connect(members_.identity().leader, members_.identity().uid); !ok) {
    return fail(ok.error());
  }
  detector_.emplace(limits_of(members_.settings()), 1, context_.reactor.now_us());
  joining_.start();
}

Job::Claim Job::claim(const Peer& from, const wire::Header& header, const wire::Received* received) const {
  if (members_.state() == JobState::kEnded || !line_.may_accept(from, header)) return Claim::kNone;
  if (received == nullptr) return Claim::kFull;
  if (!line_.accepts(from, *received)) return Claim::kNone;
  const bool joins_here = received->is_join() && line_.leader() != nullptr;
  return !joins_here || line_.leader()->owner().admits(received->joining_owner()) ? Claim::kFull : Claim::kByName;
}

bool Job::receive(const Peer& from, const wire::Received& received) {
  if (Leader* const leader = line_.leader()) {
    auto message = received.to_leader(leader->facts(from));
    if (!message) return leader->refuse(from, message.error());
    leader->receive(from, std::move(*message));
    return true;
  }
  auto message = received.to_node(JobFacts(members_, joining_.links().size(), parts_.get()));
  if (!message) {
    fail(message.error().in("a message from the leader at " + leader_name(members_) + " to " + context_.host));
    return true;
  }
  // The first answer to JOIN tells it, so that the leader takes what this node says before all have come.
  if (members_.state() == JobState::kJoining) line_.set_incarnation(received.header().incarnation);
  deliver(std::move(*message));
  return true;
}

void Job::peer_mismatched(const Peer& from, const wire::Header& header, const Error& error) {
  if (members_.state() == JobState::kEnded || header.job != members_.identity().name) return;
  if (line_.is_leader(from)) return end(error, false);
  Leader* const leader = line_.leader();
  if (leader == nullptr || !leader->gathering() || header.incarnation != 0) return;
  // Without a key any stranger may send this. Then the job goes on, and the error at its deadline names what was sent.
  if (config_.text("secret_file").empty()) return static_cast<void>(leader->refuse(from, error));
  fail(error);
}

void Job::peer_stuck(const Peer& peer) {
  if (members_.state() == JobState::kEnded) return;
  const Error error{ErrorKind::kLost,
                    "it does not read its control messages",
                    "look whether that daemon hangs, and at the network between the nodes",
                    {}};
  if (line_.is_leader(peer)) return end(error.in("the leader at " + leader_name(members_)), false);
  if (line_.leader() != nullptr) line_.leader()->refuse(peer, error);
}

void Job::deliver(wire::ToNode message) {
  if (members_.state() == JobState::kEnded) return;
  joining_.heard();
  if (detector_) detector_->heard(0, context_.reactor.now_us());
  std::visit(messages_, std::move(message));
  if (members_.all_left() && may_end(members_, 0)) end({}, true);
}

void Job::joined(wire::Joined message) {
  if (members_.state() != JobState::kJoining) return;
  name_callback("opening a job's links");
  joining_.answered();
  auto view = View::make(line_.incarnation(), members_.identity().world, std::move(message), joining_.links());
  if (!view) return fail(view.error());
  members_.advance(JobState::kConnecting);
  tick_timer_ = context_.reactor.after(members_.settings().heartbeat_us(), [this] { tick(); });
  SchedulerPort* const scheduler = line_.leader() != nullptr ? line_.leader()->scheduler() : nullptr;
  parts_ = std::make_unique<JobParts>(JobParts::Surroundings{context_.reactor, members_, line_, scheduler, *this,
                                                             context_.host, context_.links, context_.state_folder},
                                      *view);
  parts_->links.open();
}

void Job::begin() {
  if (!members_.advance(JobState::kRunning)) return;
  joining_.finished();
  parts_->recorder.begin([this](const Result<void>& traced) {
    if (members_.state() != JobState::kRunning) return;
    if (!traced) return fail(traced.error().in("trace on " + context_.host));
    // The answer comes before the first sum, so that the shortest trace tells how far the clocks are apart.
    if (line_.leader() == nullptr) line_.send(wire::Heartbeat{.sent_us = MonotonicClock::now()});
    const View& view = *parts_->view;
    const std::string links = deft::joined(view.links(), " ", &link::LinkSpec::name);
    LOG(INFO) << about(members_.identity()) << "runs: " << view.world() << " workers on " << view.node_count()
              << " nodes, this is node " << view.node() << ", policy " << members_.settings().policy << ", links "
              << links;
    welcome_from(context_.reactor, weak_from_this(),
                 std::make_shared<const JobStart>(JobStart{
                     view.node(), view.node_count(), view.node_of_rank(), members_.settings().timeout_us,
                     config_.seconds_us("spin"), members_.settings().heartbeat_us(), links_of_workers(members_, view)}),
                 0);
  });
}

Result<void> Job::change_settings(const sched::SettingsChange& change) {
  if (line_.leader() == nullptr)
    return deft::fail(ErrorKind::kInvalid, "this node does not lead job '" + members_.identity().name + "'",
                      "run deft set on the node of rank 0, at " + leader_name(members_));
  if (auto ok = line_.leader()->change_settings(change); !ok) return ok;
  if (parts_) parts_->recorder.settings_changed(change.options(), MonotonicClock::now());
  return {};
}

void Job::trace(const wire::TraceOrder& order, const JobRecorder::Told& told) {
  if (members_.state() != JobState::kRunning)
    return told(deft::fail(ErrorKind::kUnavailable, "job '" + members_.identity().name + "' does not run",
                           "wait until its workers have come"));
  if (line_.leader() == nullptr)
    return told(deft::fail(ErrorKind::kInvalid, "this node does not lead job '" + members_.identity().name + "'",
                           "run deft trace on the node of rank 0, at " + leader_name(members_)));
  parts_->recorder.obey(order, [this, order, told](const Result<std::string>& path) {
    if (path) line_.leader()->order_trace(order);
    told(path);
  });
}

void Job::fail(const Error& error) {
  if (members_.state() == JobState::kEnded) return;
  if (line_.is_open()) line_.send(wire::Failure{error, false});
  if (line_.leader() == nullptr) return end(error, false);
  if (!failing_) failing_ = error;  // a leader of this node answers with what ends all nodes, this one, too
}

void Job::suspect(const Error& error, FailureDetector::Broken broken) {
  if (members_.state() == JobState::kEnded) return;
  if (detector_ && !detector_->suspect(error, context_.reactor.now_us(), broken)) return;
  LOG(WARNING) << about(members_.identity()) << error.message() << "; finding out who is lost";
  line_.send(wire::Failure{error.in("on " + context_.host), true});
}

void Job::tick() {
  name_callback("a job's heartbeat");
  tick_timer_ = context_.reactor.after(members_.settings().heartbeat_us(), [this] { tick(); });
  const TimeUs now_us = context_.reactor.now_us();
  if (failing_) return end(*failing_, false);  // the leader has not answered
  if (members_.all_left()) {
    if (all_left_us_ == 0) all_left_us_ = now_us;
    if (may_end(members_, now_us - all_left_us_)) return end({}, true);
    if (auto ok = parts_->watchdog.check_left(now_us); !ok) fail(ok.error());
    return;
  }
  if (line_.leader() == nullptr) watch_leader(now_us);
  if (members_.state() != JobState::kRunning) return;
  parts_->progress_due();
  if (auto ok = parts_->watchdog.check(now_us); !ok) fail(ok.error());
}

void Job::watch_leader(TimeUs now_us) {
  line_.send(wire::Heartbeat{.sent_us = MonotonicClock::now()});
  const auto has_left = [this](std::uint32_t rank) { return members_.has_left(rank); };
  if (std::ranges::all_of(parts_->view->nodes()[0].ranks, has_left)) detector_->done(0);
  const auto finding = detector_->check(now_us);
  if (!finding) return;
  switch (finding->cause) {
    case FailureDetector::Cause::kSuspicion: return end(finding->suspicion, false);
    case FailureDetector::Cause::kEnded:
      return end({ErrorKind::kLost, "rank 0 has ended, while others still need it",
                  "all ranks must run the same number of steps", finding->suspicion.what},
                 false);
    default: break;
  }
  const std::string who = "node 0: " + parts_->view->nodes()[0].host + ", the leader,";
  end(finding->cause == FailureDetector::Cause::kUnanswered ? loss_of(who, finding->suspicion.message())
                                                            : loss_by_silence(who, finding->silent_us),
      false);
}

// Drivers may still be stuck in their links; whoever holds the job waits for them.
void Job::end(const Error& cause, bool clean) {
  if (!members_.advance(JobState::kEnded)) return;
  const Error error = clean ? cause : name_standstill(cause, context_, members_.settings().timeout_us);
  const LogSubject job = about(members_.identity());
  if (clean) {
    LOG(INFO) << job << "ended";
  } else {
    LOG(ERROR) << job << "failed: " << error.message();
  }
  context_.reactor.cancel(tick_timer_);
  joining_.finished();
  if (parts_) parts_->store->cancel(error);
  for (const auto& worker : members_.workers())
    if (worker.port != nullptr) worker.port->send_error(error, 0);
  members_.complete_all(shm::FailedRecord{.error_kind = static_cast<std::uint32_t>(error.kind)});
  if (parts_) {  // both may throw, for want of memory or of a thread, and the job ends nevertheless
    run_for({}, "the end of a job's trace", [&] { parts_->recorder.end(clean); });
    run_for({}, "the end of a job's links",
            [&] { parts_->links.abort(clean ? "the job has ended" : error.message()); });
  }
  context_.on_ended(*this, clean ? nullptr : &error);
}

nlohmann::json Job::status() const {
  nlohmann::json json{{"name", members_.identity().name},
                      {"uid", members_.identity().uid},
                      {"state", to_string(members_.state())},
                      {"world", members_.identity().world},
                      {"node", parts_ ? parts_->view->node() : 0},
                      {"nodes", parts_ ? parts_->view->node_count() : 0},
                      {"leads", line_.leader() != nullptr},
                      {"policy", members_.settings().policy},
                      {"compression", members_.settings().compression},
                      {"workers", workers_status(members_, parts_.get())},
                      {"links", parts_ ? parts_->links.status() : nlohmann::json::array()},
                      {"groups", parts_ ? parts_->groups.status() : nlohmann::json::array()},
                      {"stalls", parts_ ? parts_->watchdog.status() : nlohmann::json::array()}};
  if (line_.leader() != nullptr) json["leader"] = line_.leader()->status();
  if (line_.leader() == nullptr && detector_)
    json["leader_silent_ms"] = detector_->silent_us(0, context_.reactor.now_us()) / 1000;
  return json;
}

}  // namespace deft::daemon
