#include "daemon/node/job.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/link/backends.h"
#include "daemon/base/version.h"
#include "daemon/node/job_facts.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kJoinAgainUs = 200'000;

std::string host_of(const std::string& address) { return address.substr(0, address.rfind(':')); }

bool is_loopback(const std::string& host) {
  return host.starts_with("127.") || host == "localhost" || host == "[::1]" || host == "::1";
}

}  // namespace

Job::Job(JobContext& context, const WorkerPort& first, JobSettings settings)
    : context_(context),
      name_(first.attachment().job),
      uid_(first.peer().uid),
      settings_(std::move(settings)),
      world_(first.attachment().world),
      leader_address_(first.attachment().leader),
      workers_(first.attachment().local_size),
      attached_us_(MonotonicClock::now()) {
  deadline_timer_ = context_.reactor.after(settings_.timeout_us, [this] { on_deadline(); });
}

void Job::on_deadline() {
  deadline_timer_ = 0;
  const std::string limit = " within " + std::to_string(settings_.timeout_us / 1'000'000) + " s";
  std::string missing;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    if (workers_[i].session == nullptr) missing += (missing.empty() ? "" : ", ") + std::to_string(i);
  if (!missing.empty())
    return end({ErrorKind::kTimeout,
                "the worker with local rank " + missing + " of " + std::to_string(workers_.size()) + " on " +
                    context_.host + " did not come" + limit,
                "start it, or correct LOCAL_WORLD_SIZE",
                {}},
               false);
  if (leader_ || state_ != State::kJoining) return;  // the leader has the same deadline and knows who is missing
  const TimeUs now = MonotonicClock::now();
  if (leader_seen_us_ != 0 &&
      now < attached_us_ + settings_.timeout_us + settings_.silence_us()) {  // its verdict comes
    deadline_timer_ = context_.reactor.after(settings_.silence_us(), [this] { on_deadline(); });
    return;
  }
  if (refusal_) return end(*refusal_, false);
  end({ErrorKind::kTimeout,
       "the leader at " + leader_name() + " did not answer" + limit,
       "DEFT_LEADER must name the daemon on rank 0's node, its DEFT_LISTEN must be reachable from here, and rank 0 "
       "must have been started",
       {}},
      false);
}

Job::~Job() {
  if (store_) store_->cancel({ErrorKind::kLost, "the job has ended", "", {}});
  for (const auto timer : {join_timer_, tick_timer_, deadline_timer_}) context_.reactor.cancel(timer);
  if (!leader_peer_.empty()) context_.control.disconnect(leader_peer_);
}

std::string Job::leader_name() const { return leader_address_.empty() ? "(unset)" : leader_address_; }

std::size_t Job::index_of(const WorkerPort& session) const { return session.attachment().local_rank; }

Result<void> Job::check_attach(const Attachment& a) const {
  const std::string who = "rank " + std::to_string(a.rank);
  if (a.world != world_)
    return fail(ErrorKind::kMismatch,
                who + " has a world size of " + std::to_string(a.world) + ", the others on this node have " +
                    std::to_string(world_),
                "give all workers the same WORLD_SIZE");
  if (a.local_size != workers_.size())
    return fail(ErrorKind::kMismatch,
                who + " expects " + std::to_string(a.local_size) + " workers on this node, the others expect " +
                    std::to_string(workers_.size()),
                "give all the same LOCAL_WORLD_SIZE");
  if (a.leader != leader_address_)
    return fail(ErrorKind::kMismatch,
                who + " has the leader '" + a.leader + "', the others on this node have '" + leader_address_ + "'",
                "give all workers the same DEFT_LEADER");
  for (const auto& worker : workers_)
    if (worker.session != nullptr && worker.rank == a.rank)
      return fail(ErrorKind::kMismatch,
                  "two workers have rank " + std::to_string(a.rank) + " on this node: pid " +
                      std::to_string(worker.pid) + " and another",
                  "give each worker its own RANK");
  const Worker& place = workers_[a.local_rank];
  if (place.session != nullptr)
    return fail(ErrorKind::kMismatch,
                "ranks " + std::to_string(place.rank) + " and " + std::to_string(a.rank) +
                    " both have the local rank " + std::to_string(a.local_rank),
                "give each worker on a node its own LOCAL_RANK");
  return {};
}

Result<void> Job::attach(WorkerPort& session) {
  const Attachment& a = session.attachment();
  if (session.peer().uid != uid_)
    return fail(ErrorKind::kInvalid, "the job '" + name_ + "' belongs to another user",
                "set DEFT_JOB to a name of your own");
  if (state_ != State::kAttaching)
    return fail(ErrorKind::kInvalid,
                "a job named '" + name_ + "' is running on this daemon with rank " + std::to_string(workers_[0].rank) +
                    " (pid " + std::to_string(workers_[0].pid) + ")",
                "wait for it to end, or set DEFT_JOB to another name");
  if (auto ok = check_attach(a); !ok) {
    fail_job(ok.error());  // the others would wait in vain
    return ok;
  }
  auto settings = job_settings(context_.config, a.settings);
  if (!settings) return tl::unexpected(settings.error());
  for (const auto& [name, value] : settings_.agreed())
    if (settings->agreed().at(name) != value)
      return fail(ErrorKind::kMismatch,
                  "rank " + std::to_string(a.rank) + " sets '" + name + "' to '" + settings->agreed().at(name) +
                      "', the others on this node to '" + value + "'",
                  "give all workers the same settings");
  workers_[a.local_rank] = {&session, a.rank, session.peer().pid, false};
  const bool all = std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.session != nullptr; });
  if (all) join();
  return {};
}

void Job::join() {
  state_ = State::kJoining;
  if (auto ok = choose_links(); !ok) refusal_ = ok.error();
  const bool leads = std::any_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.rank == 0; });
  if (leads) {
    leader_ = std::make_unique<Leader>(
        context_.reactor, name_, context_.make_incarnation(), settings_, world_,
        [this](const Peer& node, wire::ToNode message) { send_from_leader(node, std::move(message)); });
  } else {
    auto peer = context_.control.connect(leader_address_);
    if (!peer) return fail_job(peer.error());
    leader_peer_ = std::move(*peer);
  }
  send_join();
}

// A node that has all workers needs no link between nodes: whatever DEFT_LINKS says of those, "local" stands for them.
Result<void> Job::choose_links() {
  const bool alone = workers_.size() == world_;
  const bool in_workers = std::ranges::any_of(link::backends(), [this](const link::Backend& backend) {
    return backend.runs_in_worker && settings_.links.find(backend.name) != std::string::npos;
  });
  if (world_ == 1 || (alone && !in_workers)) {
    link_specs_ = {{"local", "", ""}};
    return {};
  }
  auto specs = link::resolve_links(settings_.links, alone || is_loopback(host_of(leader_address_)));
  if (!specs) return tl::unexpected(specs.error().in("links '" + settings_.links + "' on " + context_.host));
  bool local = false;
  for (auto& spec : *specs) {
    if (alone && !link::runs_in_worker(spec.backend)) spec = {"local", "", ""};
    if (spec.backend != "local" || !local) link_specs_.push_back(spec);
    local = local || spec.backend == "local";
  }
  LOG(INFO) << "[" << name_ << "] DEFT_LINKS=" << settings_.links << " is " << link::describe(link_specs_);
  return {};
}

// Repeated until it is answered: the leader's rank 0 may come later than this node.
void Job::send_join() {
  wire::Join message;
  message.host = context_.host;
  message.deft_version = kVersion;
  message.world = world_;
  for (const auto& worker : workers_) message.ranks.push_back(worker.rank);
  message.settings = settings_.agreed();
  std::string backends;
  for (const auto& spec : link_specs_) {
    message.links.push_back({spec.name(), spec.address});
    backends += (backends.empty() ? "" : " ") + spec.common();
  }
  if (refusal_)
    message.refusal = refusal_;
  else
    message.settings["links (their kinds)"] = backends;
  to_leader(std::move(message));
  if (!leader_) join_timer_ = context_.reactor.after(kJoinAgainUs, [this] { send_join(); });
}

void Job::to_leader(wire::ToLeader message) {
  if (!leader_)
    return context_.control.send(leader_peer_, wire::encode({.job = name_, .incarnation = incarnation_}, message));
  context_.reactor.post([weak = weak_from_this(), message = std::move(message)]() mutable {
    if (const auto job = weak.lock(); job && !job->ended()) job->leader_->receive(Peer(), std::move(message));
  });
}

void Job::send_from_leader(const Peer& node, wire::ToNode message) {
  if (!node.empty())
    return context_.control.send(node, wire::encode({.job = name_, .incarnation = leader_->incarnation()}, message));
  context_.reactor.post([weak = weak_from_this(), message = std::move(message)]() mutable {
    const auto job = weak.lock();
    if (!job || job->ended()) return;
    job->handle(std::move(message));
  });
}

bool Job::accepts(const Peer& from, const wire::Received& received) const {
  if (state_ == State::kEnded || received.header().job != name_) return false;
  if (!leader_peer_.empty()) return from == leader_peer_;
  if (!leader_) return false;
  return received.is_join() ? leader_->gathering() : received.header().incarnation == leader_->incarnation();
}

bool Job::receive(const Peer& from, const wire::Received& received) {
  if (leader_) return receive_for_leader(from, received);
  auto message = received.to_node(Facts(*this));
  if (!message) {
    fail_job(message.error().in("a message from the leader at " + leader_name() + " to " + context_.host));
    return true;
  }
  if (state_ == State::kJoining && std::holds_alternative<wire::Joined>(*message))
    incarnation_ = received.header().incarnation;
  handle(std::move(*message));
  return true;
}

bool Job::receive_for_leader(const Peer& from, const wire::Received& received) {
  auto message = received.to_leader(leader_->facts(from));
  if (!message) return leader_->refuse(from, message.error());
  leader_->receive(from, std::move(*message));
  return true;
}

void Job::peer_mismatched(const Peer& from, const wire::Header& header, const Error& error) {
  if (state_ == State::kEnded || header.job != name_) return;
  if (!leader_peer_.empty() && from == leader_peer_) return end(error, false);
  if (leader_ && leader_->gathering() && header.incarnation == 0) fail_job(error);
}

void Job::handle(wire::ToNode message) {
  leader_seen_us_ = MonotonicClock::now();
  std::visit(wire::Overloaded{
                 [&](wire::Joined& joined) {
                   if (state_ == State::kJoining) on_joined(std::move(joined));
                 },
                 [&](wire::Begin&) { on_begin(); },
                 [&](wire::DeclareAgreed& agreed) { on_declare_agreed(agreed); },
                 [&](wire::PlanOrder& order) { on_plan_order(order); },
                 [&](wire::LaunchOrder& order) { on_launch_order(order); },
                 [&](wire::OperationStart& start) { on_operation_start(std::move(start)); },
                 [&](wire::OperationFailed& failed) { on_operation_failed(failed); },
                 [&](wire::LinkStop& stop) { on_link_stop(stop); },
                 [&](wire::LinkReplaced& replaced) { on_link_replaced(replaced); },
                 [&](wire::JobProgress& progress) { on_link_progress(progress); },
                 [&](wire::StoreValue& value) {
                   if (store_) store_->arrived(std::move(value));
                 },
                 [&](wire::Failure& failure) { on_failure(failure); },
                 [&](wire::Leave& leave) { on_leave(leave); },
                 [&](wire::Stalled& stalled) { on_stalled(stalled); },
                 [&](wire::Waiting& waiting) { on_waiting(waiting); },
                 [&](wire::Heartbeat& heartbeat) {
                   if (!heartbeat.reply) to_leader(wire::Heartbeat{heartbeat.number, true});
                 },
             },
             message);
}

void Job::on_joined(wire::Joined joined) {
  context_.reactor.cancel(join_timer_);
  join_timer_ = 0;
  if (leader_) incarnation_ = leader_->incarnation();
  nodes_ = std::move(joined.nodes);
  node_ = joined.node;
  node_of_rank_.assign(world_, 0);
  for (std::uint32_t node = 0; node < nodes_.size(); ++node)
    for (const auto rank : nodes_[node].ranks) node_of_rank_[rank] = node;
  state_ = State::kConnecting;
  store_ = std::make_shared<StoreClient>(context_.reactor,
                                         [this](wire::ToLeader message) { to_leader(std::move(message)); });
  tick_timer_ = context_.reactor.after(settings_.heartbeat_us(), [this] { tick(); });
  open_links();
}

void Job::open_links() {
  links_ = std::vector<LinkQueue>(link_specs_.size());
  for (std::size_t i = 0; i < links_.size(); ++i) {
    links_[i].name = link_specs_[i].name();
    links_[i].driver = link::runs_in_worker(link_specs_[i].backend)
                           ? in_process_driver(i)
                           : daemon_driver(i, link_specs_[i], MonotonicClock::now() + settings_.timeout_us);
  }
}

std::unique_ptr<LinkDriver> Job::daemon_driver(std::size_t link, const link::LinkSpec& spec, TimeUs deadline_us) {
  return std::make_unique<DaemonDriver>(
      context_.reactor, spec.name(), node_, opener(link, spec, deadline_us),
      [this](const SubCommTask& launch) { return transfer_of(launch); },
      [this, link](Result<void> result) { on_link_open(link, std::move(result)); },
      [this, link](TransferDone done) { on_done(link, std::move(done)); });
}

DaemonDriver::Open Job::opener(std::size_t link, const link::LinkSpec& spec, TimeUs deadline_us) const {
  if (spec.backend == "local") return [] { return Result<std::unique_ptr<link::Link>>(); };
  link::LinkGroup group;
  group.node = node_;
  group.nodes = static_cast<std::uint32_t>(nodes_.size());
  group.prefix = link_prefix(link);
  group.store = store_;
  group.connect_deadline_us = deadline_us;
  group.silence_us = settings_.silence_us();
  return [spec, group] { return link::open_link(spec, group); };
}

void Job::on_link_open(std::size_t link, Result<void> result) {
  if (!result) return on_link_error(link, result.error());
  links_[link].open = true;
  if (state_ != State::kConnecting) return;
  if (!std::all_of(links_.begin(), links_.end(), [](const LinkQueue& l) { return l.open; })) return;
  to_leader(wire::LinksOpen{});
}

void Job::on_begin() {
  if (state_ != State::kConnecting) return;
  state_ = State::kRunning;
  context_.reactor.cancel(deadline_timer_);
  deadline_timer_ = 0;
  std::string links;
  for (const auto& l : links_) links += (links.empty() ? "" : " ") + l.name;
  LOG(INFO) << "[" << name_ << "] runs: " << world_ << " workers on " << nodes_.size() << " nodes, this is node "
            << node_ << ", policy " << settings_.policy << ", links " << links;
  for (auto& worker : workers_) {
    if (worker.session == nullptr) continue;
    if (auto ok = worker.session->welcome({node_, static_cast<std::uint32_t>(nodes_.size()), node_of_rank_,
                                           settings_.timeout_us, context_.config.seconds_us("spin"), links_of_job()});
        !ok)
      return fail_job(ok.error().in("start " + worker.session->describe()));
  }
}

void Job::worker_ended(WorkerPort& session, bool clean, const Error& reason) {
  const std::size_t index = index_of(session);
  if (index >= workers_.size() || workers_[index].session != &session) return;
  workers_[index].session = nullptr;
  if (state_ == State::kEnded) return;
  if (!clean) return fail_job(reason.in("on " + context_.host));
  if (state_ != State::kRunning)
    return fail_job(
        {ErrorKind::kLost, session.describe() + " on " + context_.host + " left before the job began", "", {}});
  workers_[index].left = true;
  left_.insert(workers_[index].rank);
  to_leader(wire::Leave{{workers_[index].rank}});
  if (all_left()) all_left_us_ = MonotonicClock::now();
}

// Ends the job on this node. Drivers may still be stuck in their links; whoever holds the job waits for them.
void Job::end(const Error& error, bool clean) {
  if (state_ == State::kEnded) return;
  state_ = State::kEnded;
  if (clean) {
    LOG(INFO) << "[" << name_ << "] ended";
  } else {
    LOG(ERROR) << "[" << name_ << "] failed: " << error.message();
  }
  for (const auto timer : {join_timer_, tick_timer_, deadline_timer_}) context_.reactor.cancel(timer);
  if (store_) store_->cancel(error);
  for (auto& link : links_)
    if (link.driver) link.driver->abort(clean ? "the job has ended" : error.message());
  for (auto& worker : workers_) {
    if (worker.session == nullptr) continue;
    worker.session->send_error(error, 0);
    worker.session->complete(shm::FailedRecord{.error_kind = static_cast<std::uint32_t>(error.kind)});
  }
  context_.on_ended(*this);
}

bool Job::executors_finished() {
  return std::all_of(links_.begin(), links_.end(), [](LinkQueue& l) { return !l.driver || l.driver->finished(); });
}

nlohmann::json Job::status() const {
  static constexpr const char* kStates[] = {"attaching", "joining", "connecting", "running", "ended"};
  nlohmann::json json{{"name", name_},
                      {"state", kStates[static_cast<int>(state_)]},
                      {"world", world_},
                      {"node", node_},
                      {"nodes", nodes_.size()},
                      {"leads", leader_ != nullptr},
                      {"policy", settings_.policy},
                      {"workers", nlohmann::json::array()},
                      {"links", nlohmann::json::array()},
                      {"groups", nlohmann::json::array()},
                      {"stalls", nlohmann::json::array()}};
  for (const auto& worker : workers_)
    json["workers"].push_back({{"rank", worker.rank}, {"pid", worker.pid}, {"attached", worker.session != nullptr}});
  for (const auto& link : links_) {
    json["links"].push_back({{"name", link.name},
                             {"open", link.open},
                             {"parts", link.parts},
                             {"merged_parts", link.merged_parts},
                             {"bytes", link.bytes},
                             {"busy_us", link.busy_us},
                             {"waiting", link.waiting.size()}});
    if (link.lost.empty()) continue;
    json["links"].back()["lost"] = link.lost;
    json["links"].back()["run_again"] = link.replayed_parts;
    json["links"].back()["goes_over"] = link.stopping ? "" : links_[link.replacer].name;
  }
  for (const auto& [id, group] : groups_) {
    if (!group.gradients) continue;
    nlohmann::json bucket_bytes = nlohmann::json::array();  // in the order of the arena
    for (const auto& bucket : group.gradients->buckets()) bucket_bytes.push_back(bucket.bytes);
    json["groups"].push_back({{"id", id},
                              {"tensors", group.gradients->specs().size()},
                              {"bytes", group.gradients->layout().slot_bytes},
                              {"buckets", group.gradients->buckets().size()},
                              {"bucket_bytes", std::move(bucket_bytes)},
                              {"step", group.gradients->finished_generations()}});
  }
  for (const auto& [key, stall] : stalls_) json["stalls"].push_back(stall);
  if (leader_) json["leader"] = leader_->status();
  return json;
}

}  // namespace deft::daemon
