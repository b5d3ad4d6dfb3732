// The daemon's log on standard error: one line an event, as text or as JSON (option log_format).
//
//   start_logging(config);          // once, before the first LOG
//   set_log_level(config);          // again after a reload
//
//   LOG(INFO) << about("resnet") << "runs";                                  // [resnet] runs
//   LOG(WARNING) << about("resnet").rank(3) << "stalled: rank 3 has not ...";  // rank and link are fields of JSON only
//   LOG(INFO) << about("resnet").of(uid) << "ended";                         // one of a bounded number of lines for each user
//
//   {"time": "2026-11-25T10:00:00.000123Z", "level": "info", "job": "resnet", "message": "...", "source": "job.cc:120", "thread": 30}
//
// A control character in a message (names that users and peers chose may have some) is written as \n or \x1b, so nobody can forge a line
// or command a terminal. In JSON bytes that are no UTF-8 are replaced. "job", "rank" and "link" are there if the line says what it is
// about, whatever its text is.
//
// Nobody can fill the log for others: of the lines about one user's jobs kLinesOfUser a minute are written, and as many warnings and
// errors. A line that standard error does not take at once is left out, because the event loop may not wait for whoever reads it. The
// next line tells how many are missing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "core/base/config.h"

namespace deft::daemon {

constexpr unsigned kLinesOfUser = 300;

void start_logging(const Config& config);
void set_log_level(const Config& config);

// What a line of the log is about. It comes first in the line.
class LogSubject {
 public:
  explicit LogSubject(std::string job) : job_(std::move(job)) {}
  LogSubject&& rank(std::uint32_t rank) && { return rank_ = rank, std::move(*this); }
  LogSubject&& link(std::string link) && { return link_ = std::move(link), std::move(*this); }
  LogSubject&& of(uid_t user) && { return user_ = user, std::move(*this); }

  // How the line begins.
  [[nodiscard]] std::string prefix() const { return "[" + job_ + "] "; }
  [[nodiscard]] const std::string& job() const { return job_; }
  [[nodiscard]] std::optional<std::uint32_t> rank() const { return rank_; }
  [[nodiscard]] const std::string& link() const { return link_; }
  [[nodiscard]] std::optional<uid_t> user() const { return user_; }

 private:
  std::string job_;
  std::optional<std::uint32_t> rank_;
  std::string link_;  // empty: none
  std::optional<uid_t> user_;
};

inline LogSubject about(std::string job) { return LogSubject(std::move(job)); }
std::ostream& operator<<(std::ostream& out, const LogSubject& subject);

}  // namespace deft::daemon
