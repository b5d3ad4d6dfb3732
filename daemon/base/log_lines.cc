#include "daemon/base/log_lines.h"

#include <glog/logging.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/text.h"

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

// Of the line that this thread makes, until the sink takes it.
thread_local std::optional<LogSubject> t_subject;

// Standard error, a whole line in one write: lines of several threads do not mix.
class LineSink final : public google::LogSink {
 public:
  explicit LineSink(bool as_json) : as_json_(as_json) {}

  void send(google::LogSeverity severity, const char* /*path*/, const char* file, int line,
            const google::LogMessageTime& when, const char* message, std::size_t length) override {
    const std::string_view text(message, length);
    std::string out = as_json_ ? json(severity, file, line, when, text)
                               : escape_controls(ToString(severity, file, line, when, message, length));
    out += '\n';
    [[maybe_unused]] const auto written = write(STDERR_FILENO, out.data(), out.size());
  }

 private:
  static std::string json(google::LogSeverity severity, const char* file, int line, const google::LogMessageTime& when,
                          std::string_view message) {
    nlohmann::ordered_json object{{"time", utc(when)}, {"level", level_name(severity)}};
    // One that was left behind by a line below the log's level does not begin this line.
    const auto subject = std::exchange(t_subject, std::nullopt);
    if (subject && message.starts_with(subject->prefix())) {
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
