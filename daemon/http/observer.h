// The daemon seen from outside, over HTTP: for Prometheus, for probes, and for people.
//
//   auto observer = Observer::open("127.0.0.1:29612", reactor, [&] { return server.session_status(geteuid()); });
//   reactor.run();
//
//   /metrics   Prometheus' text format        /status   the JSON of `deft status --json`, and the numbers of the process
//   /healthz   200: the event loop answers    /readyz   200: it also takes new jobs
//   /          a page for a browser
//
// All of them show one status, which the reactor makes when somebody asks (status_source.h). Destroy it after the reactor has stopped.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "daemon/http/http_server.h"
#include "daemon/http/status_source.h"

namespace deft::daemon {

class Observer {
 public:
  // `make_status` runs on the reactor's thread; it and the reactor outlive this object. Errors: the address is none, or is taken.
  static Result<std::unique_ptr<Observer>> open(const std::string& address, Reactor& reactor,
                                                std::function<std::string()> make_status);
  ~Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  [[nodiscard]] const std::string& address() const { return http_->address(); }

 private:
  Observer(std::unique_ptr<HttpServer> http, Reactor& reactor, std::function<std::string()> make_status);
  void serve(const std::string& path, HttpServer::Answer answer);

  std::unique_ptr<HttpServer> http_;
  StatusSource source_;
};

}  // namespace deft::daemon
