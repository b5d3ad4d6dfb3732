#include "daemon/leader/leader.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/model/link_costs.h"
#include "daemon/wire/envelopes.h"

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

std::vector<std::uint32_t> ranks_of(const proto::Join& join) { return {join.ranks().begin(), join.ranks().end()}; }

std::string place(const proto::Join& join) { return join.host() + " (rank " + describe_ranks(ranks_of(join)) + ")"; }

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
      send_([this, send = std::move(send)](const Peer& peer, proto::Envelope envelope) {
        envelope.set_version(kControlVersion);
        envelope.set_job(job_);
        envelope.set_incarnation(incarnation_);
        send(peer, std::move(envelope));
      }),
      store_([this](const Peer& peer, proto::StoreValue value) {
        proto::Envelope envelope;
        *envelope.mutable_store_value() = std::move(value);
        send_(peer, std::move(envelope));
      }) {
  gather_timer_ = reactor_.after(settings_.timeout_us, [this] { give_up_gathering(); });
}

Leader::~Leader() {
  reactor_.cancel(gather_timer_);
  reactor_.cancel(tick_timer_);
}

Leader::Member* Leader::member_of(const Peer& peer) {
  const auto it = std::find_if(members_.begin(), members_.end(), [&](const Member& m) { return m.peer == peer; });
  return it == members_.end() ? nullptr : &*it;
}

void Leader::broadcast(const proto::Envelope& envelope) {
  for (const auto& member : members_) send_(member.peer, envelope);
}

void Leader::receive(const Peer& from, const proto::Envelope& envelope) {
  if (state_ == State::kFailed) return;
  if (envelope.has_join()) return on_join(from, envelope.join());
  if (from.empty() && envelope.has_failure()) return on_failure(envelope.failure());  // also before it has joined
  Member* const member = member_of(from);
  if (member == nullptr) return;
  member->last_seen_us = MonotonicClock::now();
  const auto node = static_cast<std::size_t>(member - members_.data());
  switch (envelope.body_case()) {
    case proto::Envelope::kLinksOpen: return on_links_open(*member);
    case proto::Envelope::kDeclare: return on_declare(node, envelope.declare());
    case proto::Envelope::kOperationReady: return on_operation_ready(node, envelope.operation_ready());
    case proto::Envelope::kGradientStatistics: return on_statistics(node, envelope.gradient_statistics());
    case proto::Envelope::kStepTime: return on_step_time(*member, envelope.step_time());
    case proto::Envelope::kStoreSet: return store_.set(envelope.store_set());
    case proto::Envelope::kStoreGet: return store_.get(from, envelope.store_get());
    case proto::Envelope::kFailure: return on_failure(envelope.failure());
    case proto::Envelope::kLeave: return on_leave(envelope.leave());
    case proto::Envelope::kLinkFailed:
      return on_link_failed(envelope.link_failed().link(), envelope.link_failed().epoch(),
                            error_of(envelope.link_failed().cause()));
    case proto::Envelope::kLinkStopped: return on_link_stopped(node, envelope.link_stopped());
    case proto::Envelope::kLinkProgress: return on_link_progress(node, envelope.link_progress());
    case proto::Envelope::kStalled: return broadcast(envelope);
    case proto::Envelope::kWaiting: return send_(Peer(), envelope);
    case proto::Envelope::kHeartbeat:
      if (!envelope.heartbeat().reply()) send_(from, heartbeat_reply(envelope.heartbeat().number()));
      return;
    default: return;
  }
}

std::optional<Error> Leader::check_join(const proto::Join& join) const {
  if (join.world() != world_)
    return Error{ErrorKind::kMismatch,
                 place(join) + " was started with a world size of " + std::to_string(join.world()) +
                     ", the leader with " + std::to_string(world_),
                 "give all workers the same WORLD_SIZE",
                 {}};
  for (const auto& member : members_)
    for (const auto rank : join.ranks())
      if (std::count(member.join.ranks().begin(), member.join.ranks().end(), rank) != 0)
        return Error{
            ErrorKind::kMismatch,
            "two workers have rank " + std::to_string(rank) + ": on " + place(member.join) + " and on " + place(join),
            "give each worker its own RANK",
            {}};
  if (members_.empty()) return std::nullopt;
  const auto& first = members_.front().join;
  if (join.deft_version() != first.deft_version())
    return Error{
        ErrorKind::kMismatch,
        place(first) + " runs deftd " + first.deft_version() + ", " + place(join) + " runs " + join.deft_version(),
        "install the same version on all nodes",
        {}};
  for (const auto& [name, value] : first.settings()) {
    const auto it = join.settings().find(name);
    if (it == join.settings().end() && join.has_refusal()) continue;  // it does not know
    const std::string other = it == join.settings().end() ? "(unset)" : it->second;
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

void Leader::on_join(const Peer& from, const proto::Join& join) {
  // Repeated while others are missing: the leader lives and knows it.
  if (member_of(from) != nullptr) return send_(from, heartbeat_reply(0));
  if (state_ != State::kGathering || join.ranks_size() == 0) return;
  const auto error = check_join(join);
  Member member;
  member.peer = from;
  member.join = join;
  member.last_seen_us = MonotonicClock::now();
  members_.push_back(std::move(member));
  if (error) return fail_job(*error);
  std::size_t present = 0;
  for (const auto& m : members_) present += static_cast<std::size_t>(m.join.ranks_size());
  if (present < world_) return;
  if (const auto refused = refusal()) return fail_job(*refused);
  if (members_.size() > 1 && members_.front().join.links().empty())
    return fail_job({ErrorKind::kInvalid, "the nodes have no link between them", "name one by DEFT_LINKS", {}});
  begin_connecting();
}

// Of the first node that cannot take part.
std::optional<Error> Leader::refusal() const {
  for (const auto& member : members_)
    if (member.join.has_refusal()) return error_of(member.join.refusal());
  return std::nullopt;
}

void Leader::give_up_gathering() {
  gather_timer_ = 0;
  if (const auto refused = refusal()) return fail_job(*refused);
  std::vector<bool> here(world_, false);
  std::string hosts;
  for (const auto& member : members_) {
    for (const auto rank : member.join.ranks())
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
  const auto first_rank = [](const Member& m) {
    return *std::min_element(m.join.ranks().begin(), m.join.ranks().end());
  };
  std::sort(members_.begin(), members_.end(),
            [&](const Member& a, const Member& b) { return first_rank(a) < first_rank(b); });
  proto::Envelope envelope;
  for (const auto& member : members_) {
    auto* const node = envelope.mutable_joined()->add_nodes();
    node->set_host(member.join.host());
    *node->mutable_ranks() = member.join.ranks();
    *node->mutable_links() = member.join.links();
  }
  for (std::size_t i = 0; i < members_.size(); ++i) {
    envelope.mutable_joined()->set_node(static_cast<std::uint32_t>(i));
    send_(members_[i].peer, envelope);
  }
  for (const auto& link : members_.front().join.links()) {
    const double latency_us = link.name() == "local" ? 1 : 200;
    const model::LinkModel* const known = model::find_cost(settings_.link_costs, link.name());
    links_.emplace_back(known != nullptr ? *known : model::LinkModel{link.name(), latency_us, 1000});
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
  proto::Envelope envelope;
  envelope.mutable_begin();
  broadcast(envelope);
}

void Leader::on_failure(const proto::Failure& failure) {
  const Error error = error_of(failure);
  if (!failure.suspected()) return fail_job(error);
  suspect(error, false);
}

void Leader::suspect(const Error& error, bool of_link) {
  if (suspicion_ && (of_link || !suspicion_->of_link)) return;
  suspicion_ = {error, MonotonicClock::now(), of_link};
  proto::Envelope ping;
  ping.mutable_heartbeat()->set_number(++heartbeats_);
  broadcast(ping);
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

void Leader::on_leave(const proto::Leave& leave) {
  for (auto& member : members_)
    for (const auto rank : leave.ranks())
      if (std::count(member.join.ranks().begin(), member.join.ranks().end(), rank) != 0) member.left.insert(rank);
  proto::Envelope envelope;
  *envelope.mutable_leave() = leave;
  for (const auto& member : members_)
    if (!member.gone()) send_(member.peer, envelope);
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
  const proto::Envelope envelope = failure_envelope(error);
  broadcast(envelope);
  if (member_of(Peer()) == nullptr) send_(Peer(), envelope);  // the own node has not joined yet
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
    nodes.push_back({{"host", member.join.host()},
                     {"ranks", ranks_of(member.join)},
                     {"step_us", member.step_us},
                     {"silent_ms", (MonotonicClock::now() - member.last_seen_us) / 1000}});
  return {{"nodes", nodes}, {"links", links},     {"launches", next_number_}, {"outstanding", outstanding_.size()},
          {"plans", plans}, {"merging", merging}, {"preserver", preserver}};
}

}  // namespace deft::daemon
