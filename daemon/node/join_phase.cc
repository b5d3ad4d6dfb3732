#include "daemon/node/join_phase.h"

#include "daemon/base/version.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kJoinAgainUs = 200'000;

}  // namespace

JoinPhase::JoinPhase(Reactor& reactor, const Membership& members, LeaderLine& line, JobControl& control,
                     std::string host, const LinkMaker& links)
    : reactor_(reactor), members_(members), line_(line), control_(control), host_(std::move(host)), links_(links) {}

JoinPhase::~JoinPhase() { finished(); }

void JoinPhase::begin() {
  if (deadline_ != 0) return;
  gathered_by_us_ = reactor_.now_us() + members_.settings().timeout_us;
  deadline_ = reactor_.after(members_.settings().timeout_us, [this] { on_deadline(); });
}

void JoinPhase::start() {
  choice_ = links_.choose(members_, host_);
  send();
}

// Repeated until it is answered: the leader's rank 0 may come later than this node.
void JoinPhase::send() {
  wire::Join message;
  message.host = host_;
  message.deft_version = kVersion;
  message.world = members_.identity().world;
  message.user = members_.identity().uid;
  message.token = members_.identity().token;
  message.ranks = members_.ranks();
  message.settings = members_.settings().agreed();
  message.refusal = choice_.refusal;
  std::string kinds;
  for (const auto& spec : choice_.specs) {
    message.links.push_back({spec.name(), spec.address});
    kinds += (kinds.empty() ? "" : " ") + spec.common();
  }
  if (!choice_.refusal) message.settings["links (their kinds)"] = kinds;
  line_.send(std::move(message));
  if (line_.leader() != nullptr) return;
  again_ = reactor_.after(kJoinAgainUs, [this] {
    watch_leader();
    if (members_.state() == JobState::kJoining) send();
  });
}

// A leader that was heard answers each JOIN.
void JoinPhase::watch_leader() {
  if (!heard_us_) return;
  const TimeUs silent_us = reactor_.now_us() - *heard_us_;
  if (silent_us <= members_.settings().silence_us()) return;
  Error error = loss_by_silence("the leader at " + members_.identity().leader, silent_us);
  error.what += ", while other nodes were missing";
  control_.end(error, false);
}

void JoinPhase::answered() {
  reactor_.cancel(again_);
  again_ = 0;
}

void JoinPhase::finished() {
  answered();
  reactor_.cancel(deadline_);
  deadline_ = 0;
}

void JoinPhase::on_deadline() {
  deadline_ = 0;
  const JobSettings& settings = members_.settings();
  if (const std::string missing = members_.missing(); !missing.empty())
    return control_.end(
        {ErrorKind::kTimeout,
         "the worker with local rank " + missing + " of " + std::to_string(members_.workers().size()) + " on " + host_ +
             " did not come within " + std::to_string(settings.timeout_us / 1'000'000) + " s",
         "start it, or correct LOCAL_WORLD_SIZE",
         {}},
        false);
  if (line_.leader() != nullptr || members_.state() != JobState::kJoining) return;  // the leader decides
  // A leader that lives knows who is missing. The first deadline of all nodes counts, so it has to decide now.
  if (heard_us_ && !asked_) {
    asked_ = true;
    line_.send(wire::Failure{nobody_answered(), false});
    deadline_ = reactor_.after(settings.silence_us(), [this] { on_deadline(); });
    return;
  }
  // A wrong name of the leader comes first: links may be refused only because the leader seems to be another machine.
  control_.end(choice_.refusal && !line_.is_nowhere() ? *choice_.refusal : nobody_answered(), false);
}

Error JoinPhase::nobody_answered() const {
  const std::string& leader = members_.identity().leader;
  const std::string silent = "the leader at " + (leader.empty() ? "(unset)" : leader) + " did not answer within " +
                             std::to_string(members_.settings().timeout_us / 1'000'000) + " s";
  if (line_.is_nowhere())
    return {ErrorKind::kTimeout,
            silent + ", because this node finds no IPv4 address of that name",
            "correct DEFT_LEADER or MASTER_ADDR, or see to it that this node resolves the name",
            {}};
  if (line_.is_locked_out())
    return {ErrorKind::kTimeout,
            silent + ", because it ends connections before a message can pass",
            "it has another key (secret_file) than this daemon, or only one of the two has one: give all daemons of a "
            "run the same; or no "
            "deftd listens there",
            {}};
  return {ErrorKind::kTimeout,
          silent,
          "DEFT_LEADER must name the daemon on rank 0's node, its DEFT_LISTEN must be reachable from here, and rank 0 "
          "must have been started",
          {}};
}

}  // namespace deft::daemon
