#include "daemon/leader/leader.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/model/link_costs.h"

namespace deft::daemon {

std::string describe_ranks(const std::vector<std::uint32_t>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t j = i;
    while (j + 1 < ranks.size() && ranks[j + 1] == ranks[j] + 1) ++j;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (j > i) text += "-" + std::to_string(ranks[j]);
    i = j + 1;
  }
  return text;
}

namespace {

std::string place(const wire::Join& join) { return join.host + " (rank " + describe_ranks(join.ranks) + ")"; }

}  // namespace

std::string Leader::Member::describe(std::size_t node) const {
  return "node " + std::to_string(node) + ": " + place(join);
}

Leader::Leader(Reactor& reactor, std::string job, std::uint64_t incarnation, JobSettings settings, std::uint32_t world,
               Send send)
    : reactor_(reactor),
      job_(std::move(job)),
      incarnation_(incarnation),
      settings_(std::move(settings)),
      world_(world),
      send_(std::move(send)),
      store_([this](const Peer& peer, wire::StoreValue value) { send_(peer, std::move(value)); }) {
  gather_timer_ = reactor_.after(settings_.timeout_us, [this] { give_up_gathering(); });
}

Leader::~Leader() {
  reactor_.cancel(gather_timer_);
  reactor_.cancel(tick_timer_);
}

const Leader::Member* Leader::member_of(const Peer& peer) const {
  const auto it = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.peer == peer; });
  return it == members_.end() ? nullptr : &*it;
}

void Leader::broadcast(const wire::ToNode& message) {
  for (const auto& member : members_) send_(member.peer, message);
}

wire::LeaderFacts Leader::facts(const Peer& from) const {
  wire::LeaderFacts facts;
  facts.world = world_;
  if (const Member* const member = member_of(from)) facts.sender_ranks = member->join.ranks;
  for (const auto& state : link_states_) facts.link_epochs.push_back(state.epoch);
  facts.next_number = next_number_;
  facts.buckets = [this](std::uint32_t id) {
    const auto group = groups_.find(id);
    return group == groups_.end() || !group->second.scheduler ? 0 : group->second.schedules.size();
  };
  return facts;
}

bool Leader::refuse(const Peer& from, const Error& error) {
  const Member* const member = member_of(from);
  if (member == nullptr || state_ == State::kFailed) return false;
  const auto node = static_cast<std::size_t>(member - members_.data());
  fail_job(error.in("a message from " + member->describe(node)));
  return true;
}

void Leader::receive(const Peer& from, wire::ToLeader message) {
  if (state_ == State::kFailed) return;
  if (auto* const join = std::get_if<wire::Join>(&message)) return on_join(from, std::move(*join));
  const auto* const failure = std::get_if<wire::Failure>(&message);
  if (from.empty() && failure != nullptr) return on_failure(*failure);  // also before it has joined
  const auto it = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.peer == from; });
  if (it == members_.end()) return;
  Member& member = *it;
  member.last_seen_us = MonotonicClock::now();
  const auto node = static_cast<std::size_t>(it - members_.begin());
  std::visit(wire::Overloaded{
                 [](wire::Join&) {},
                 [&](wire::LinksOpen&) { on_links_open(member); },
                 [&](wire::Declare& declare) { on_declare(node, std::move(declare)); },
                 [&](wire::OperationReady& ready) { on_operation_ready(node, std::move(ready)); },
                 [&](wire::GradientStatistics& statistics) { on_statistics(node, statistics); },
                 [&](wire::StepTime& time) { on_step_time(member, time); },
                 [&](wire::StoreSet& set) { check(store_.set(std::move(set))); },
                 [&](wire::StoreGet& get) { check(store_.get(from, std::move(get))); },
                 [&](wire::LinkFailed& failed) { on_link_failed(failed.link, failed.epoch, failed.cause); },
                 [&](wire::LinkStopped& stopped) { on_link_stopped(node, stopped); },
                 [&](wire::NodeProgress& progress) { on_link_progress(node, progress); },
                 [&](wire::Heartbeat& heartbeat) {
                   if (!heartbeat.reply) send_(from, wire::Heartbeat{heartbeat.number, true});
                 },
                 [&](wire::Failure& failed) { on_failure(failed); },
                 [&](wire::Leave& leave) { on_leave(leave); },
                 [&](wire::Stalled& stalled) { broadcast(stalled); },
                 [&](wire::Waiting& waiting) { send_(Peer(), waiting); },
             },
             message);
}

void Leader::check(const Result<void>& done) {
  if (!done) fail_job(done.error());
}

std::optional<Error> Leader::check_join(const wire::Join& join) const {
  if (join.world != world_)
    return Error{ErrorKind::kMismatch,
                 place(join) + " was started with a world size of " + std::to_string(join.world) +
                     ", the leader with " + std::to_string(world_),
                 "give all workers the same WORLD_SIZE",
                 {}};
  for (const auto& member : members_)
    for (const auto rank : join.ranks)
      if (std::count(member.join.ranks.begin(), member.join.ranks.end(), rank) != 0)
        return Error{
            ErrorKind::kMismatch,
            "two workers have rank " + std::to_string(rank) + ": on " + place(member.join) + " and on " + place(join),
            "give each worker its own RANK",
            {}};
  if (members_.empty()) return std::nullopt;
  const auto& first = members_.front().join;
  if (join.deft_version != first.deft_version)
    return Error{ErrorKind::kMismatch,
                 place(first) + " runs deftd " + first.deft_version + ", " + place(join) + " runs " + join.deft_version,
                 "install the same version on all nodes",
                 {}};
  for (const auto& [name, value] : first.settings) {
    const auto it = join.settings.find(name);
    if (it == join.settings.end() && join.refusal) continue;  // it does not know
    const std::string other = it == join.settings.end() ? "(unset)" : it->second;
    if (other != value)
      return Error{ErrorKind::kMismatch,
                   "the nodes differ in '" + name + "': '" + value + "' on " + place(first) + ", '" + other + "' on " +
                       place(join),
                   name.starts_with("links") ? "auto and patterns stand for each node's own NICs: name as many on each"
                                             : "give all workers the same settings",
                   {}};
  }
  return std::nullopt;
}

void Leader::on_join(const Peer& from, wire::Join join) {
  // Repeated while others are missing: the leader lives and knows it.
  if (member_of(from) != nullptr) return send_(from, wire::Heartbeat{0, true});
  if (state_ != State::kGathering || join.ranks.empty()) return;
  const auto error = check_join(join);
  Member member;
  member.peer = from;
  member.join = std::move(join);
  member.last_seen_us = MonotonicClock::now();
  members_.push_back(std::move(member));
  if (error) return fail_job(*error);
  std::size_t present = 0;
  for (const auto& m : members_) present += m.join.ranks.size();
  if (present < world_) return;
  if (const auto refused = refusal()) return fail_job(*refused);
  if (members_.size() > 1 && members_.front().join.links.empty())
    return fail_job({ErrorKind::kInvalid, "the nodes have no link between them", "name one by DEFT_LINKS", {}});
  begin_connecting();
}

// Of the first node that cannot take part.
std::optional<Error> Leader::refusal() const {
  for (const auto& member : members_)
    if (member.join.refusal) return member.join.refusal;
  return std::nullopt;
}

void Leader::give_up_gathering() {
  gather_timer_ = 0;
  if (const auto refused = refusal()) return fail_job(*refused);
  std::vector<bool> here(world_, false);
  std::string hosts;
  for (const auto& member : members_) {
    for (const auto rank : member.join.ranks)
      if (rank < world_) here[rank] = true;
    hosts += (hosts.empty() ? "" : "; ") + place(member.join);
  }
  std::vector<std::uint32_t> missing;
  for (std::uint32_t rank = 0; rank < world_; ++rank)
    if (!here[rank]) missing.push_back(rank);
  fail_job({ErrorKind::kTimeout,
            "after " + std::to_string(settings_.timeout_us / 1'000'000) + " s rank " + describe_ranks(missing) +
                " of " + std::to_string(world_) + " is missing; present: " + (hosts.empty() ? "nobody" : hosts),
            "start the missing workers, with DEFT_LEADER naming this daemon and its port reachable",
            {}});
}

void Leader::begin_connecting() {
  reactor_.cancel(gather_timer_);
  gather_timer_ = 0;
  state_ = State::kConnecting;
  const auto first_rank = [](const Member& m) { return *std::min_element(m.join.ranks.begin(), m.join.ranks.end()); };
  std::sort(members_.begin(), members_.end(),
            [&](const Member& a, const Member& b) { return first_rank(a) < first_rank(b); });
  wire::Joined joined;
  for (const auto& member : members_) joined.nodes.push_back({member.join.host, member.join.ranks, member.join.links});
  for (std::size_t i = 0; i < members_.size(); ++i) {
    joined.node = static_cast<std::uint32_t>(i);
    send_(members_[i].peer, joined);
  }
  for (const auto& link : members_.front().join.links) {
    const double latency_us = link.name == "local" ? 1 : 200;
    const model::LinkModel* const known = model::find_cost(settings_.link_costs, link.name);
    links_.emplace_back(known != nullptr ? *known : model::LinkModel{link.name, latency_us, 1000});
  }
  link_states_.resize(links_.size());
  for (auto& state : link_states_) state.progress.resize(members_.size());
  tick_timer_ = reactor_.after(settings_.heartbeat_us(), [this] { tick(); });
}

void Leader::on_links_open(Member& member) {
  member.links_open = true;
  const bool all = std::all_of(members_.begin(), members_.end(), [](const Member& m) { return m.links_open; });
  if (!all || state_ != State::kConnecting) return;
  state_ = State::kRunning;
  broadcast(wire::Begin{});
}

void Leader::on_failure(const wire::Failure& failure) {
  if (!failure.suspected) return fail_job(failure.error);
  suspect(failure.error, false);
}

void Leader::suspect(const Error& error, bool of_link) {
  if (suspicion_ && (of_link || !suspicion_->of_link)) return;
  suspicion_ = {error, MonotonicClock::now(), of_link};
  broadcast(wire::Heartbeat{++heartbeats_, false});
}

void Leader::check_suspicion(TimeUs now_us) {
  if (!suspicion_ || now_us - suspicion_->since_us < settings_.timeout_us / 4) return;
  std::optional<Error> lost;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].gone())
      lost = {ErrorKind::kLost, members_[i].describe(i) + " has ended, while others still need it",
              "all ranks must run the same number of steps", suspicion_->error.what};
    if (!members_[i].gone() && members_[i].last_seen_us < suspicion_->since_us)
      lost = {ErrorKind::kLost, members_[i].describe(i) + " was lost", "look at that node and its daemon's log",
              suspicion_->error.what};
  }
  if (!lost && suspicion_->of_link) return suspicion_.reset();
  fail_job(lost ? *lost : suspicion_->error);
}

void Leader::on_leave(const wire::Leave& leave) {
  for (auto& member : members_)
    for (const auto rank : leave.ranks)
      if (std::count(member.join.ranks.begin(), member.join.ranks.end(), rank) != 0) member.left.insert(rank);
  for (const auto& member : members_)
    if (!member.gone()) send_(member.peer, leave);
}

void Leader::tick() {
  tick_timer_ = reactor_.after(settings_.heartbeat_us(), [this] { tick(); });
  const TimeUs now = MonotonicClock::now();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].gone() || members_[i].peer.empty()) continue;
    if (now - members_[i].last_seen_us <= settings_.silence_us()) continue;
    return fail_job({ErrorKind::kLost,
                     members_[i].describe(i) + " was lost: no sign of life for " +
                         std::to_string((now - members_[i].last_seen_us) / 1000) + " ms",
                     "look at that node and its daemon's log",
                     {}});
  }
  check_suspicion(now);
  if (state_ != State::kFailed) watch_operations(now);
  watch_links(now);
}

void Leader::fail_job(const Error& error) {
  if (state_ == State::kFailed) return;
  LOG(ERROR) << "[" << job_ << "] the job failed: " << error.message();
  const wire::ToNode message = wire::Failure{error, false};
  broadcast(message);
  if (member_of(Peer()) == nullptr) send_(Peer(), message);  // the own node has not joined yet
  state_ = State::kFailed;
  reactor_.cancel(gather_timer_);
  reactor_.cancel(tick_timer_);
}

nlohmann::json Leader::status() const {
  nlohmann::json links = nlohmann::json::array();
  for (std::size_t i = 0; i < links_.size(); ++i) {
    const auto& link = links_[i].model();
    links.push_back({{"name", link.name},
                     {"latency_us", link.latency_us},
                     {"bytes_per_us", link.bytes_per_us},
                     {"lost", link_states_[i].lost}});
  }
  nlohmann::json plans = nlohmann::json::array(), preserver = nlohmann::json::array();
  nlohmann::json merging = nlohmann::json::array();
  for (const auto& [id, group] : groups_) {
    for (const auto& plan : group.plans) plans.push_back(plan);
    if (!group.merging.is_null()) merging.push_back(group.merging);
    if (!group.preserver) continue;
    preserver.push_back(group.preserver->status());
    preserver.back()["group"] = id;
  }
  nlohmann::json nodes = nlohmann::json::array();
  for (const auto& member : members_)
    nodes.push_back({{"host", member.join.host},
                     {"ranks", member.join.ranks},
                     {"step_us", member.step_us},
                     {"silent_ms", (MonotonicClock::now() - member.last_seen_us) / 1000}});
  return {{"nodes", nodes}, {"links", links},     {"launches", next_number_}, {"outstanding", outstanding_.size()},
          {"plans", plans}, {"merging", merging}, {"preserver", preserver}};
}

}  // namespace deft::daemon
