#include "daemon/base/log_lines.h"

#include <glog/logging.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/clock.h"
#include "core/base/text.h"
#include "daemon/base/rate_limit.h"

namespace deft::daemon {
namespace {

std::string utc(const google::LogMessageTime& when) {
  const std::time_t seconds = when.timestamp();
  std::tm fields{};
  gmtime_r(&seconds, &fields);
  std::array<char, 40> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &fields);
  std::snprintf(text.data() + length, text.size() - length, ".%06dZ", static_cast<int>(when.usec()));
  return text.data();
}

const char* level_name(google::LogSeverity severity) {
  switch (severity) {
    case google::GLOG_INFO: return "info";
    case google::GLOG_WARNING: return "warning";
    case google::GLOG_ERROR: return "error";
    default: return "fatal";
  }
}

// The subject of the line that this thread makes, until the sink takes it.
thread_local std::optional<LogSubject> t_subject;

// Which lines about a user's jobs are written. Thread-safe.
class UserLines {
 public:
  // Gives what RateLimit::admit gives.
  std::optional<std::uint64_t> admit(uid_t user, bool grave) {
    constexpr TimeUs kMinuteUs = 60'000'000;
    const std::lock_guard lock(mutex_);
    return lines_.try_emplace({user, grave}, kLinesOfUser, kMinuteUs).first->second.admit(MonotonicClock::now());
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uid_t, bool>, RateLimit> lines_;
};

// Writes lines to standard error as far as it takes them at once. Thread-safe.
class LineWriter {
 public:
  void write(std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (lost_ > 0 && put(std::to_string(lost_) + " lines are missing here: nobody has read this log\n")) lost_ = 0;
    if (lost_ > 0 || !put(line)) ++lost_;
  }

 private:
  // A pipe or a socket that is ready takes PIPE_BUF bytes without waiting. So a longer line goes in pieces.
  static bool put(std::string_view text) {
    while (!text.empty()) {
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      if (poll(&ready, 1, 0) != 1) return false;
      const ssize_t written = ::write(STDERR_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
      if (written < 0) return errno != EAGAIN;  // it is closed: nobody misses a line
      text.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
  }

  std::mutex mutex_;
  std::uint64_t lost_ = 0;
};

// Standard error, a whole line in one write: lines of several threads do not mix.
class LineSink final : public google::LogSink {
 public:
  explicit LineSink(bool as_json) : as_json_(as_json) {}

  void send(google::LogSeverity severity, const char* /*path*/, const char* file, int line,
            const google::LogMessageTime& when, const char* message, std::size_t length) override {
    std::string text(message, length);
    // One that was left behind by a line below the log's level does not begin this line.
    auto subject = std::exchange(t_subject, std::nullopt);
    if (subject && !text.starts_with(subject->prefix())) subject.reset();
    if (subject && subject->user()) {
      const auto left_out = users_.admit(*subject->user(), severity > google::GLOG_INFO);
      if (!left_out) return;
      text += RateLimit::describe(*left_out);
    }
    std::string out = as_json_ ? json(severity, file, line, when, text, subject)
                               : escape_controls(ToString(severity, file, line, when, text.data(), text.size()));
    writer_.write(out + '\n');
  }

 private:
  static std::string json(google::LogSeverity severity, const char* file, int line, const google::LogMessageTime& when,
                          std::string_view message, const std::optional<LogSubject>& subject) {
    nlohmann::ordered_json object{{"time", utc(when)}, {"level", level_name(severity)}};
    if (subject) {
      object["job"] = subject->job();
      if (subject->rank()) object["rank"] = *subject->rank();
      if (!subject->link().empty()) object["link"] = subject->link();
      message.remove_prefix(subject->prefix().size());
    }
    object["message"] = message;
    object["source"] = std::string(file) + ":" + std::to_string(line);
    object["thread"] = gettid();
    return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  const bool as_json_;
  UserLines users_;
  LineWriter writer_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const LogSubject& subject) {
  t_subject = subject;
  return out << subject.prefix();
}

void set_log_level(const Config& config) {
  const std::string& level = config.text("log_level");
  FLAGS_minloglevel = level == "error"     ? google::GLOG_ERROR
                      : level == "warning" ? google::GLOG_WARNING
                                           : google::GLOG_INFO;
  FLAGS_v = level == "debug" ? 1 : 0;
}

void start_logging(const Config& config) {
  set_log_level(config);
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;  // the sink writes
  for (int severity = google::GLOG_INFO; severity < google::NUM_SEVERITIES; ++severity)
    google::SetLogDestination(severity, "");  // no files
  google::InitGoogleLogging("deftd");
  static auto* const sink = new LineSink(config.text("log_format") == "json");  // lives on: threads log until the end
  google::AddLogSink(sink);
}

}  // namespace deft::daemon
