#include "daemon/server/parameter_server.h"

#include <glog/logging.h>
#include <systemd/sd-daemon.h>

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "core/link/ps/parameter_server.h"
#include "daemon/base/rate_limit.h"
#include "daemon/base/version.h"
#include "daemon/http/http_server.h"
#include "daemon/http/metrics_text.h"
#include "daemon/http/process_numbers.h"
#include "daemon/server/exposure.h"

namespace deft::daemon {
namespace {

using link::ps_backend::ParameterServer;

constexpr TimeUs kNewsUs = 200'000, kOldUs = 10'000'000;

// Metrics of a parameter server. The server's thread tells the numbers, and the thread of HTTP shows them.
class ServerMetrics {
 public:
  // Null: the options want none, or the port is taken, as by the daemon of the node, whose file this server may share.
  static std::unique_ptr<ServerMetrics> open(const std::string& address) {
    if (address == "off") return nullptr;
    auto http = HttpServer::open(address);
    LOG_IF(WARNING, !http) << "no metrics are served: " << http.error().message();
    return http ? std::unique_ptr<ServerMetrics>(new ServerMetrics(*std::move(http))) : nullptr;
  }
  ~ServerMetrics() { http_->stop(); }
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  [[nodiscard]] const std::string& address() const { return http_->address(); }

  void report(const ParameterServer& server) {
    const TimeUs now_us = MonotonicClock::now();
    const std::lock_guard lock(mutex_);
    if (now_us - told_us_ < kNewsUs) return;
    told_us_ = now_us;
    auto& drops = numbers_["drops"];
    for (std::size_t i = 0; i < server.drops().size(); ++i)
      drops[std::string(ParameterServer::kDropNames[i])] = server.drops()[i];
    numbers_["links"] = server.links();
  }

 private:
  explicit ServerMetrics(std::unique_ptr<HttpServer> http) : http_(std::move(http)) {
    http_->start([this](const std::string& path, const HttpServer::Answer& answer) { answer(page(path)); });
  }
  HttpResponse page(const std::string& path) {
    constexpr unsigned kNotFound = 404, kUnavailable = 503;
    const std::lock_guard lock(mutex_);
    const TimeUs age_us = MonotonicClock::now() - told_us_;
    if (path == "/metrics")
      return {.type = kMetricsType,
              .body = metrics_text({{"version", kVersion},
                                    {"reactor_answers", age_us < kOldUs},
                                    {"status_age_us", age_us},
                                    {"server", numbers_},
                                    {"process", process_numbers()}})};
    if (path != "/healthz") return {.status = kNotFound, .body = "there are /metrics and /healthz\n"};
    if (age_us < kOldUs) return {.body = "ok\n"};
    return {.status = kUnavailable, .body = "the server does not answer\n"};
  }

  const std::unique_ptr<HttpServer> http_;
  std::mutex mutex_;
  nlohmann::json numbers_;
  TimeUs told_us_ = 0;
};

}  // namespace

Result<void> serve_parameters(const Config& config, int signals_fd, const std::function<void()>& usable) {
  if (auto ok = check_exposure(config, "parameter server"); !ok) return ok;
  const auto metrics = ServerMetrics::open(config.text("metrics"));
  ParameterServer* serving = nullptr;
  ParameterServer::Options options;
  options.listen = config.text("listen");
  options.key_file = config.text("secret_file");
  options.log = [lines = RateLimit()](const std::string& line) mutable {
    if (const auto left_out = lines.admit(MonotonicClock::now())) LOG(INFO) << line << RateLimit::describe(*left_out);
  };
  options.on_turn = [&] {
    sd_notify(0, "WATCHDOG=1");
    if (metrics != nullptr) metrics->report(*serving);
  };
  options.grace_us = config.seconds_us("timeout");
  auto server = ParameterServer::open(std::move(options));
  if (!server) return tl::unexpected(server.error());
  serving = server->get();
  LOG(INFO) << "deftd " << kVersion << " is a parameter server, ready on " << serving->address()
            << "; settings: " << config.effective();
  LOG_IF(INFO, metrics != nullptr) << "metrics are on http://" << metrics->address() << "/metrics";
  if (metrics != nullptr) metrics->report(*serving);  // whoever looks as soon as it is ready sees that it lives
  usable();
  serving->run(signals_fd);
  return {};
}

}  // namespace deft::daemon
