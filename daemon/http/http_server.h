// A small HTTP server on a thread of its own, for questions that need a short answer. It only reads: GET and HEAD.
//
//   auto server = HttpServer::open("127.0.0.1:29612");
//   (*server)->start([&](const std::string& path, HttpServer::Answer answer) {
//     answer({.status = 200, .type = "text/plain", .body = "ok\n"});
//   });
//
// Nobody can exhaust it: it keeps at most kMaxConnections, the newest ones, each for one request and for at most kDeadlineUs. A server
// on a loopback address answers only requests for such an address, so that no web page can read it through a browser by a name
// of its own. The site and what post() and after() take run on the server's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::daemon {

struct HttpResponse {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};

class HttpServer {
 public:
  static constexpr std::size_t kMaxConnections = 32;
  static constexpr TimeUs kDeadlineUs = 5'000'000;
  static constexpr std::size_t kMaxHeaderBytes = 8192;

  using Answer = std::function<void(HttpResponse)>;  // once, now or later, on the server's thread
  using Site = std::function<void(const std::string& path, Answer answer)>;

  // Binds `address`: the IP address of a NIC and a port; port 0 chooses a free one.
  static Result<std::unique_ptr<HttpServer>> open(const std::string& address);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Once. Signals that the caller has blocked stay blocked on the server's thread.
  void start(Site site);
  // Ends the thread. Posted work that has not run is dropped. The answers that the site has kept must go before the server.
  void stop();

  [[nodiscard]] const std::string& address() const { return address_; }

  void post(std::function<void()> callback);                    // any thread
  void after(TimeUs delay_us, std::function<void()> callback);  // server's thread

 private:
  class Impl;
  HttpServer(std::unique_ptr<Impl> impl, std::string address);
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace deft::daemon
