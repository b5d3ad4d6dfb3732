#include "daemon/http/observer.h"

#include <utility>

#include "daemon/http/metrics_text.h"
#include "daemon/http/process_numbers.h"
#include "daemon/http/status_page.h"

namespace deft::daemon {
namespace {

using Status = StatusSource::Status;
using Show = HttpResponse (*)(const Status& status);

// What all pages show: the daemon's status, and what needs no reactor.
nlohmann::json full(const Status& status) {
  nlohmann::json json = status.json ? *status.json : nlohmann::json::object();
  json["process"] = process_numbers();
  json["reactor_answers"] = status.answered;
  json["status_age_us"] = status.age_us;
  return json;
}

constexpr unsigned kOk = 200, kNotFound = 404, kUnavailable = 503;

HttpResponse show_metrics(const Status& status) { return {kOk, kMetricsType, metrics_text(full(status))}; }

HttpResponse show_status(const Status& status) {
  return {status.answered ? kOk : kUnavailable, "application/json", full(status).dump(2) + "\n"};
}

HttpResponse show_page(const Status& status) { return {kOk, kPageType, status_page(full(status))}; }

HttpResponse show_health(const Status& status) {
  if (status.answered) return {.body = "ok\n"};
  return {.status = kUnavailable, .body = "the daemon's event loop does not answer\n"};
}

HttpResponse show_readiness(const Status& status) {
  if (!status.answered) return show_health(status);
  if (status.json->value("takes_jobs", false)) return {.body = "ok\n"};
  return {.status = kUnavailable, .body = "the daemon drains: it takes no new jobs\n"};
}

Show page_at(const std::string& path) {
  if (path == "/") return show_page;
  if (path == "/metrics") return show_metrics;
  if (path == "/status") return show_status;
  if (path == "/healthz") return show_health;
  if (path == "/readyz") return show_readiness;
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<Observer>> Observer::open(const std::string& address, Reactor& reactor,
                                                 std::function<std::string()> make_status) {
  auto http = HttpServer::open(address);
  if (!http) return tl::unexpected(http.error());
  std::unique_ptr<Observer> observer(new Observer(*std::move(http), reactor, std::move(make_status)));
  observer->http_->start([raw = observer.get()](const std::string& path, HttpServer::Answer answer) {
    raw->serve(path, std::move(answer));
  });
  return observer;
}

Observer::Observer(std::unique_ptr<HttpServer> http, Reactor& reactor, std::function<std::string()> make_status)
    : http_(std::move(http)), source_(reactor, std::move(make_status), *http_) {}

Observer::~Observer() { http_->stop(); }

void Observer::serve(const std::string& path, HttpServer::Answer answer) {
  const Show show = page_at(path);
  if (show == nullptr)
    return answer({.status = kNotFound, .body = "there are /, /metrics, /status, /healthz and /readyz\n"});
  source_.ask([show, answer = std::move(answer)](const Status& status) { answer(show(status)); });
}

}  // namespace deft::daemon
