// Brings the daemon's status from the reactor's thread to the HTTP server's, without either of them waiting for the other.
//
//   StatusSource source(reactor, [&] { return server.session_status(geteuid()); }, http);
//   source.ask([](const StatusSource::Status& status) { ... });   // now or within kPatienceUs
//
// However many ask, the reactor makes at most one status each kFreshUs, and none while nobody asks. A reactor that does not answer
// in time is found out by that: then the newest status that there is comes with answered = false. HTTP server's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/clock.h"
#include "daemon/base/reactor.h"
#include "daemon/http/http_server.h"

namespace deft::daemon {

class StatusSource {
 public:
  static constexpr TimeUs kFreshUs = 200'000;
  static constexpr TimeUs kPatienceUs = 2'000'000;  // shorter than HttpServer::kDeadlineUs

  struct Status {
    std::shared_ptr<const nlohmann::json> json;  // an object; null: there has been none yet
    TimeUs age_us = 0;
    bool answered = false;  // the reactor works
  };
  using Take = std::function<void(const Status& status)>;

  // `make_status` runs on the reactor's thread. All outlive this object, which is destroyed after `http` and the reactor have stopped.
  StatusSource(Reactor& reactor, std::function<std::string()> make_status, HttpServer& http)
      : reactor_(reactor), make_status_(std::move(make_status)), http_(http) {}

  void ask(Take take);

 private:
  [[nodiscard]] Status newest(bool answered) const;
  void arrived(const std::string& text);
  void give_up(std::uint64_t number);

  Reactor& reactor_;
  const std::function<std::string()> make_status_;
  HttpServer& http_;
  std::shared_ptr<const nlohmann::json> newest_;
  TimeUs newest_us_ = 0;
  bool asked_ = false;
  std::map<std::uint64_t, Take> waiting_;  // by number
  std::uint64_t next_ = 0;
};

}  // namespace deft::daemon
