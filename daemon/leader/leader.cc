#include "daemon/leader/leader.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/model/link_costs.h"
#include "core/model/link_names.h"
#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

const Peer kOwnNode;
constexpr double kLocalLatencyUs = 1, kLatencyUs = 200, kBytesPerUs = 1000;  // of a link that was not measured yet

// A link that failed is the better reason, also if it is not known yet whether a node is to blame. `detector`: once all have come.
Error late_start(const Roster& roster, const std::optional<FailureDetector>& detector, TimeUs timeout_us) {
  if (!detector) return roster.missing(timeout_us);
  if (const auto suspected = detector->suspected()) return *suspected;
  return roster.without_links(timeout_us);
}

// A node does not say which link it suspects.
bool has_workers_links(const std::optional<LinkFailover>& links) {
  for (std::uint32_t link = 0; links && link < links->size(); ++link)
    if (model::runs_in_workers(links->cost(link).name)) return true;
  return false;
}

}  // namespace

// One call for each message of a node that has joined.
class Leader::Handler {
 public:
  Handler(Leader& leader, std::size_t node) : leader_(leader), node_(node) {}

  void operator()(const wire::Join&) {  // repeated while others are missing: the leader lives and knows it
    reply(wire::Heartbeat{.reply = true});
  }
  void operator()(const wire::LinksOpen&) {
    if (!leader_.roster_.open_links(node_) || leader_.state_ != State::kConnecting) return;
    leader_.state_ = State::kRunning;
    leader_.launches_->start();
    leader_.to_all(wire::Begin{});
  }
  void operator()(wire::Declare& declare) {
    if (!leader_.launches_) return;
    const auto name_of = [this](std::size_t node) {
      return "rank " + std::to_string(leader_.roster_.first_rank(node));
    };
    check(leader_.launches_->declare(node_, std::move(declare), name_of));
  }
  void operator()(const wire::Release& release) {
    if (leader_.launches_) check(leader_.launches_->release(node_, release.group));
  }
  void operator()(wire::CollectiveReady& request) {
    if (!leader_.collectives_) return;
    auto ready = leader_.collectives_->ask(node_, std::move(request), leader_.clock_.now_us());
    if (!ready) return;
    if (ready->mismatch) return leader_.to_all(wire::CollectiveFailed{ready->name, *ready->mismatch});
    const std::uint32_t link = leader_.links_->next_for_collective();
    // A root sends it to every other node.
    const std::uint64_t number = leader_.links_->order(link, ready->bytes * leader_.roster_.nodes().size());
    leader_.to_all(wire::CollectiveStart{number, link, std::move(ready->name), std::move(ready->counts)});
  }
  void operator()(const wire::GradientStatistics& statistics) {
    if (leader_.launches_) leader_.launches_->take_statistics(node_, statistics);
  }
  void operator()(const wire::StepTime& time) {
    const double slowest_us = leader_.roster_.report_step(node_, time.us);
    if (!leader_.launches_) return;
    leader_.launches_->slowest_step_measured(slowest_us);
    leader_.launches_->codecs_measured(node_, time.codecs);
  }
  void operator()(wire::StoreSet& set) { check(leader_.store_.set(std::move(set))); }
  void operator()(wire::StoreGet& get) {
    check(leader_.store_.get(leader_.roster_.nodes()[node_].peer, std::move(get)));
  }
  void operator()(const wire::LinkFailed& failed) { leader_.remove_link(failed); }
  void operator()(const wire::LinkStopped& stopped) {
    if (!leader_.links_) return;
    if (const auto replaced = leader_.links_->stopped(node_, stopped)) leader_.to_all(*replaced);
  }
  void operator()(const wire::NodeProgress& progress) {
    if (!leader_.links_) return;
    if (const auto all = leader_.links_->progress(node_, progress, leader_.clock_.now_us())) leader_.to_all(*all);
  }
  void operator()(const wire::Heartbeat& heartbeat) {
    if (heartbeat.reply) return;
    reply(wire::Heartbeat{.reply = true, .sent_us = MonotonicClock::now(), .answered_us = heartbeat.sent_us});
  }
  void operator()(const wire::Failure& failure) {
    const bool at_deadline = !failure.suspected && failure.error.kind == ErrorKind::kTimeout;
    // A node at its deadline knows less about who is missing.
    if (at_deadline && leader_.gathering())
      return leader_.fail_job(leader_.roster_.missing(leader_.settings_.timeout_us));
    if (at_deadline && leader_.state_ == State::kConnecting) return;  // JOINED has crossed it
    if (!failure.suspected) return leader_.fail_job(failure.error);
    using Broken = FailureDetector::Broken;
    leader_.suspect(failure.error, has_workers_links(leader_.links_) ? Broken::kWorkersLink : Broken::kAny);
  }
  void operator()(const wire::Leave& leave) {
    Roster& roster = leader_.roster_;
    roster.leave(leave);
    for (std::size_t node = 0; leader_.detector_ && node < roster.nodes().size(); ++node)
      if (roster.nodes()[node].gone()) leader_.detector_->done(node);
    leader_.to_all(leave);  // a node whose workers have left keeps its links until all have
  }
  void operator()(const wire::Stalled& stalled) { leader_.to_all(stalled); }
  // Another node waits for a launch: the own node says which of its workers owes the gradients.
  void operator()(const wire::Waiting& waiting) { leader_.host_.send({&kOwnNode, 1}, waiting); }

 private:
  void reply(const wire::ToNode& message) { leader_.host_.send({&leader_.roster_.nodes()[node_].peer, 1}, message); }
  void check(const Result<void>& done) {
    if (!done) leader_.fail_job(done.error());
  }
  Leader& leader_;
  const std::size_t node_;
};

Leader::Leader(const Clock& clock, LeaderHost& host, Identity identity, JobSettings settings)
    : clock_(clock),
      host_(host),
      id_(std::move(identity)),
      settings_(std::move(settings)),
      starts_by_us_(id_.gathered_by_us.value_or(clock.now_us() + settings_.timeout_us)),
      roster_(id_.world),
      store_([this](const Peer& to, wire::StoreValue value) {
        host_.send({&to, 1}, std::move(value));
      }) {}

wire::LeaderFacts Leader::facts(const Peer& from) const {
  wire::LeaderFacts facts;
  facts.world = id_.world;
  facts.codecs = settings_.codecs.size();
  if (const auto node = roster_.index_of(from)) facts.sender_ranks = roster_.nodes()[*node].join.ranks;
  if (links_) {
    facts.link_epochs = links_->epochs();
    facts.next_number = links_->next_number();
  }
  facts.buckets = [this](std::uint32_t group) { return launches_ ? launches_->buckets(group) : 0; };
  return facts;
}

bool Leader::refuse(const Peer& from, const Error& error) {
  const auto node = roster_.index_of(from);
  if (!node && state_ == State::kGathering) roster_.note_refused(error, clock_.now_us());
  if (!node || state_ == State::kFailed) return false;
  fail_job(error.in("control messages of " + roster_.describe(*node)));
  return true;
}

void Leader::receive(const Peer& from, wire::ToLeader message) {
  if (state_ == State::kFailed) return;
  if (const auto node = roster_.index_of(from)) {
    if (detector_) detector_->heard(*node, clock_.now_us());
    return std::visit(Handler(*this, *node), message);
  }
  const auto* const failure = std::get_if<wire::Failure>(&message);
  if (from == kOwnNode && failure != nullptr) return fail_job(failure->error);  // before it has joined
  auto* const join = std::get_if<wire::Join>(&message);
  if (join == nullptr || state_ != State::kGathering || join->ranks.empty()) return;
  if (from != kOwnNode && !id_.owner.admits({join->user, join->token})) return turn_away(from, *join);
  if (auto ok = roster_.join(from, std::move(*join)); !ok) return fail_job(ok.error());
  if (!roster_.complete()) return;
  if (auto ok = roster_.check_complete(); !ok) return fail_job(ok.error());
  begin_connecting();
}

// The job goes on without it: who sends this may be anybody.
void Leader::turn_away(const Peer& from, const wire::Join& join) {
  const bool by_token = !id_.owner.token.empty() || !join.token.empty();
  const Error error{
      ErrorKind::kInvalid,
      "the job '" + id_.job + "' at this leader is another one: " +
          (by_token ? "its token is not that of the workers on " + join.host
                    : "it belongs to the user with the id " + std::to_string(id_.owner.user) + ", and the workers on " +
                          join.host + " to " + std::to_string(join.user)),
      by_token ? "give all workers of a job the same DEFT_JOB_TOKEN, or use deftrun, which makes one"
               : "set DEFT_JOB to a name of your own; if users have different ids on these nodes, give all workers one "
                 "DEFT_JOB_TOKEN",
      {}};
  if (const auto left_out = roster_.note_refused(error, clock_.now_us()))
    LOG(WARNING) << about(id_.job) << "a node is turned away: " << error.message() << RateLimit::describe(*left_out);
  host_.send({&from, 1}, wire::Failure{error, false});
}

void Leader::begin_connecting() {
  state_ = State::kConnecting;
  starts_by_us_ = clock_.now_us() + settings_.timeout_us;
  roster_.number_nodes();
  const auto& nodes = roster_.nodes();
  wire::Joined joined;
  for (const auto& node : nodes) joined.nodes.push_back({node.join.host, node.join.ranks, node.join.links});
  host_.send_joined(roster_.peers(), std::move(joined));
  std::vector<model::LinkModel> guesses;
  for (const auto& link : nodes.front().join.links) {
    const model::LinkModel* const known = model::find_cost(settings_.link_costs, link.name);
    const double latency_us = link.name == "local" ? kLocalLatencyUs : kLatencyUs;
    guesses.push_back(known != nullptr ? *known : model::LinkModel{link.name, latency_us, kBytesPerUs});
  }
  const TimeUs timeout = settings_.timeout_us;
  links_.emplace(guesses, nodes.size(), LinkFailover::Timing{timeout, settings_.heartbeat_us()});
  launches_.emplace(
      LaunchCoordinator::JobSize{id_.job, id_.world, nodes.size(), id_.owner.user}, settings_, clock_, *links_,
      [this](const wire::ToNode& message) { to_all(message); }, host_.offload_for(id_.owner));
  collectives_.emplace(nodes.size(), id_.world, lateness_of(settings_));
  detector_.emplace(FailureDetector::Limits{settings_.silence_us(), timeout / 4, timeout / 4, timeout / 4},
                    nodes.size(), clock_.now_us());
}

void Leader::remove_link(const wire::LinkFailed& failed) {
  if (!links_) return;
  const auto lost = links_->remove(failed, state_ == State::kRunning, clock_.now_us());
  if (!lost) return suspect(lost.error(), FailureDetector::Broken::kAny);
  if (!*lost) return;
  LOG(WARNING) << about(id_.job).link(links_->cost(failed.link).name) << "link " << links_->cost(failed.link).name
               << " is lost: " << failed.cause.message() << "; the job goes on over " << links_->cost((*lost)->by).name;
  to_all((*lost)->stop);
  suspect(failed.cause, FailureDetector::Broken::kReplacedLink);  // it may have failed because a node was lost
  if ((*lost)->first && launches_) launches_->link_lost(failed.link);
}

// All that live answer a heartbeat.
void Leader::suspect(const Error& error, FailureDetector::Broken broken) {
  if (!detector_) return fail_job(error);
  if (detector_->suspect(error, clock_.now_us(), broken)) to_all(wire::Heartbeat{});
}

std::optional<TimeUs> Leader::tick() {
  const TimeUs now = clock_.now_us(), left = starts_by_us_ - now;
  if (detector_ && state_ != State::kFailed) watch_nodes(now);
  const bool starts = state_ == State::kGathering || state_ == State::kConnecting;
  if (starts && left <= 0) fail_job(late_start(roster_, detector_, settings_.timeout_us));
  if (state_ == State::kFailed) return std::nullopt;
  if (collectives_) watch_late_nodes(now);
  if (state_ == State::kRunning) watch_links(now);
  if (state_ == State::kFailed) return std::nullopt;
  return starts ? std::min(left, settings_.heartbeat_us()) : settings_.heartbeat_us();
}

void Leader::watch_nodes(TimeUs now_us) {
  const auto own = roster_.index_of(kOwnNode);
  const auto found = detector_->check(now_us, own);
  if (!found) return;
  using Cause = FailureDetector::Cause;
  // All answer, also the daemons whose workers have ended, and others stand in for the link.
  if (found->cause == Cause::kSuspicion && found->of_link) return detector_->forget_suspicion();
  if (found->cause == Cause::kSuspicion) return fail_job(found->suspicion);
  const std::string who = roster_.describe(found->peer);
  Error error =
      found->cause == Cause::kSilent ? loss_by_silence(who, found->silent_us) : loss_of(who, "", found->suspicion.what);
  if (found->cause == Cause::kEnded) {
    error.what = who + " has ended, while others still need it";
    error.fix = "all ranks must run the same number of steps";
  }
  if (own && found->hears_nobody && found->cause != Cause::kEnded) {
    error.what += ", and no other node is heard on " + roster_.describe(*own) + ", the leader";
    error.fix = "if the other nodes live, look at the leader's network first; else " + error.fix;
  }
  fail_job(error);
}

void Leader::watch_late_nodes(TimeUs now_us) {
  const auto is_gone = [this](std::size_t node) { return roster_.nodes()[node].gone(); };
  auto all_owed = collectives_->watch(now_us, is_gone);
  std::ranges::move(launches_->undeclared().watch(now_us, is_gone), std::back_inserter(all_owed));
  for (const auto& owed : all_owed) {
    const std::string who = roster_.describe(owed.node);
    if (owed.gone)
      return fail_job({ErrorKind::kLost,
                       who + " has ended, and '" + owed.name + "' needs it",
                       "all ranks must run the same number of steps and collectives",
                       {}});
    if (owed.too_long)
      return fail_job({ErrorKind::kTimeout,
                       who + " has not " + std::string(owed.duty) + " '" + owed.name + "' for " +
                           std::to_string(owed.age_us / 1'000'000) + " s",
                       "raise DEFT_STALL_TIMEOUT if this is expected",
                       {}});
    // The node knows which of its workers owe it.
    const auto age_ms = static_cast<std::uint64_t>(owed.age_us / 1000);
    host_.send({&roster_.nodes()[owed.node].peer, 1},
               wire::Late{owed.group ? "" : owed.name, owed.group.value_or(0), age_ms});
  }
}

void Leader::watch_links(TimeUs now_us) {
  const auto stalls = links_->watch(now_us, [this](std::size_t node) { return roster_.describe(node); });
  if (!stalls) return fail_job(stalls.error());
  for (const auto& stall : *stalls) remove_link(stall);
}

void Leader::fail_job(const Error& error) {
  if (state_ == State::kFailed) return;
  LOG(ERROR) << about(id_.job).of(id_.owner.user) << "the job failed: " << error.message();
  const wire::ToNode message = wire::Failure{error, false};
  to_all(message);
  if (!roster_.index_of(kOwnNode)) host_.send({&kOwnNode, 1}, message);  // it has not joined yet
  state_ = State::kFailed;
  if (launches_) launches_->stop();
}

Result<void> Leader::change_settings(const sched::SettingsChange& change) {
  if (state_ == State::kRunning) return launches_->change_settings(change);
  return fail(ErrorKind::kUnavailable, "job '" + id_.job + "' does not run", "wait until its workers have come");
}

void Leader::order_trace(const wire::TraceOrder& order) {
  std::vector<Peer> others = roster_.peers();
  std::erase(others, kOwnNode);
  host_.send(others, order);
}

nlohmann::json Leader::status() const {
  auto links = nlohmann::json::array(), nodes = nlohmann::json::array();
  for (std::uint32_t link = 0; links_ && link < links_->size(); ++link) {
    const auto& cost = links_->cost(link);
    links.push_back({{"name", cost.name},
                     {"latency_us", cost.latency_us},
                     {"bytes_per_us", cost.bytes_per_us},
                     {"lost", links_->lost(link)}});
  }
  for (std::size_t node = 0; node < roster_.nodes().size(); ++node) {
    const auto& one = roster_.nodes()[node];
    const TimeUs silent_us = detector_ ? detector_->silent_us(node, clock_.now_us()) : 0;
    nodes.push_back({{"host", one.join.host},
                     {"ranks", one.join.ranks},
                     {"step_us", one.step_us},
                     {"silent_ms", silent_us / 1000}});
  }
  nlohmann::json json{{"nodes", nodes},
                      {"links", links},
                      {"launches", links_ ? links_->next_number() : 0},
                      {"plans", nlohmann::json::array()},
                      {"merging", nlohmann::json::array()},
                      {"policies", nlohmann::json::array()},
                      {"policies_in_force", nlohmann::json::array()},
                      {"preserver", nlohmann::json::array()},
                      {"outstanding", 0}};
  if (launches_) launches_->add_status(json);
  return json;
}

}  // namespace deft::daemon
