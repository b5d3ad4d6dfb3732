// Finds out which peer is lost: by silence, or, after something broke, by who no longer answers.
//
//   FailureDetector detector({.silence_us = timeout / 2, .answer_us = timeout / 4, ...}, peers, now_us);
//   detector.heard(peer, now_us);                  // with every message
//   if (detector.suspect(error, now_us)) ping();   // a link broke: all that live answer
//   if (auto finding = detector.check(now_us)) ...  // with every heartbeat; the caller ends the job by it
//
// A broken link is mostly the sign of a lost peer, so its error waits until it is known who does not answer. The leader watches
// its nodes by this, and a node its leader. No I/O, no clock. Not thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::daemon {

// kLost: "node 1: host1 was lost: HOW". `where`: what happened first, if anything did.
Error loss_of(const std::string& who, const std::string& how, const std::string& where = {});
// HOW is the silence.
Error loss_by_silence(const std::string& who, TimeUs silent_us);

class FailureDetector {
 public:
  struct Limits {
    TimeUs silence_us = 0;  // without a message for longer than this, a peer is lost
    TimeUs answer_us = 0;   // this long after a suspicion, a peer that has not been heard since is lost
    TimeUs ended_us = 0;    // this long after it, a peer whose workers have ended is the cause, if it does not answer
    TimeUs give_up_us = 0;  // this long after it, with all peers heard: the suspicion itself is the cause
  };

  enum class Cause {
    kSilent,      // `peer` was not heard for `silent_us`
    kUnanswered,  // `peer` was not heard since the suspicion
    kEnded,  // `peer` is needed, and its workers have ended: it has not been heard, or it is the workers that are needed
    kSuspicion,  // no peer is to blame
  };

  // The thing that broke.
  enum class Broken {
    kAny,
    kReplacedLink,  // others stand in for it, so the suspicion is of no use if all peers answer
    kWorkersLink,   // it needs the processes of all workers, also of those that have ended
  };

  struct Finding {
    Cause cause = Cause::kSuspicion;
    std::size_t peer = 0;  // undefined for kSuspicion
    TimeUs silent_us = 0;
    Error suspicion;       // empty for kSilent
    bool of_link = false;  // of the suspicion: kReplacedLink
    // All other peers are silent, too, and there is at least one. Then this process may be the one that is cut off.
    bool hears_nobody = false;
  };

  FailureDetector(Limits limits, std::size_t peers, TimeUs now_us) : limits_(limits), peers_(peers, Peer{now_us}) {}

  void heard(std::size_t peer, TimeUs now_us) { peers_[peer].heard_us = now_us; }
  // All its workers have ended cleanly. Its daemon lives on until others need it no more: its silence is no failure.
  void done(std::size_t peer) { peers_[peer].ended = true; }

  // False: another suspicion is being looked into already.
  bool suspect(const Error& error, TimeUs now_us, Broken broken = Broken::kAny);
  void forget_suspicion() { suspicion_.reset(); }
  [[nodiscard]] std::optional<Error> suspected() const {
    return suspicion_ ? std::optional(suspicion_->error) : std::nullopt;
  }

  // The first thing that ends the job. Silence counts of every peer but `self`, which is this process.
  [[nodiscard]] std::optional<Finding> check(TimeUs now_us, std::optional<std::size_t> self = std::nullopt) const;

  [[nodiscard]] TimeUs silent_us(std::size_t peer, TimeUs now_us) const { return now_us - peers_[peer].heard_us; }

 private:
  // No peer but `lost` and `self` is heard. False if there is no other one, or if all others have ended.
  [[nodiscard]] bool others_are_silent(std::size_t lost, std::optional<std::size_t> self, TimeUs now_us) const;
  // It has not been heard since the suspicion, for as long as an answer may take.
  [[nodiscard]] bool owes_an_answer(std::size_t peer, TimeUs now_us) const;
  // Its workers have ended, and that is why something broke.
  [[nodiscard]] bool is_missed(std::size_t peer, TimeUs now_us) const;

  struct Peer {
    TimeUs heard_us = 0;
    bool ended = false;
  };
  struct Suspicion {
    Error error;
    TimeUs since_us = 0;
    Broken broken = Broken::kAny;
    [[nodiscard]] bool of_link() const { return broken == Broken::kReplacedLink; }
  };

  const Limits limits_;
  std::vector<Peer> peers_;
  std::optional<Suspicion> suspicion_;
};

}  // namespace deft::daemon
