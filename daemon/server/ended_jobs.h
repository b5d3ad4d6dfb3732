// Remembers which jobs of this daemon have ended, and why: the newest by name, all of them as counts. Of the user who has most of them
// the oldest is forgotten.
//
//   history.add(job.members().identity(), cause, now_us);   // cause: null if all workers left
//   json["ended_jobs"] = history.newest(now_us);
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "daemon/node/membership.h"

namespace deft::daemon {

// How often something failed, by ErrorKind.
using CountsByReason = std::array<std::uint64_t, static_cast<std::size_t>(ErrorKind::kInternal) + 1>;

// {"lost": 2, "timeout": 0, ...}: each kind of error, whether it was seen or not.
nlohmann::json by_reason(const CountsByReason& counts);

class EndedJobs {
 public:
  static constexpr std::size_t kShown = 20;
  static constexpr std::size_t kMaxCauseBytes = 500;  // a message may quote what a peer sent

  void add(const JobIdentity& job, const Error* cause, TimeUs now_us);

  [[nodiscard]] std::uint64_t count() const { return count_; }
  // One object for each of the newest jobs of this user, or of all users; the newest job first. "cause" is empty if the job ended
  // well.
  [[nodiscard]] nlohmann::json newest(TimeUs now_us, std::optional<uid_t> user = std::nullopt) const;
  // {"well": 3, "lost": 1, ...}
  [[nodiscard]] nlohmann::json by_reason() const;

 private:
  struct Ended {
    std::uint64_t number = 0;  // of all jobs that ended here, from 1
    std::string name;
    uid_t uid = 0;
    std::uint32_t world = 0;
    std::string reason;
    std::string cause;
    TimeUs at_us = 0;
  };
  void forget_one();

  std::deque<Ended> newest_;
  CountsByReason failed_{};
  std::uint64_t count_ = 0, well_ = 0;
};

}  // namespace deft::daemon
