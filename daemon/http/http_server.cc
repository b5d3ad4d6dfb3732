#include "daemon/http/http_server.h"

#include <glog/logging.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <boost/asio.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <thread>
#include <utility>

#include "core/base/numbers.h"

namespace deft::daemon {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // after an error such as EMFILE
constexpr int kNice = 10;                                      // training goes first

// True if a browser may have sent this: a page that makes its own name point here sends that name.
bool names_loopback(beast::string_view host) {
  std::string name(host);
  if (name.starts_with('[')) {
    name = name.substr(1, name.find(']') - 1);
  } else {
    name = name.substr(0, name.find(':'));
  }
  error_code error;
  const auto address = asio::ip::make_address(name, error);
  return name == "localhost" || (!error && address.is_loopback());
}

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, const HttpServer::Site& site, bool loopback)
      : stream_(std::move(socket)), site_(site), loopback_(loopback) {
    parser_.header_limit(HttpServer::kMaxHeaderBytes);
  }

  void start() {
    stream_.expires_after(std::chrono::microseconds(HttpServer::kDeadlineUs));  // for all of it
    http::async_read_header(stream_, buffer_, parser_,
                            [self = shared_from_this()](error_code error, std::size_t) { self->on_header(error); });
  }

  void close() {
    error_code ignored;
    stream_.socket().close(ignored);
  }

 private:
  void on_header(error_code error) {
    if (error && error.category() != http::make_error_code(http::error::bad_method).category()) return close();
    if (error) return respond({.status = 400, .body = "this is no request of HTTP\n"});
    const auto& request = parser_.get();
    const bool only_head = request.method() == http::verb::head;
    if (request.method() != http::verb::get && !only_head)
      return respond({.status = 405, .body = "only GET and HEAD are served\n"});
    const auto host = request.find(http::field::host);
    if (loopback_ && host != request.end() && !names_loopback(host->value()))
      return respond({.status = 403, .body = "ask for 127.0.0.1 or localhost, not for another name\n"});
    without_body_ = only_head;
    const std::string target(request.target());
    site_(target.substr(0, target.find('?')),
          [self = shared_from_this()](HttpResponse response) { self->respond(std::move(response)); });
  }

  void respond(HttpResponse response) {
    response_.version(11);
    response_.result(response.status);
    response_.set(http::field::content_type, response.type);
    response_.set(http::field::cache_control, "no-store");
    response_.set(http::field::connection, "close");
    response_.set("X-Content-Type-Options", "nosniff");
    response_.set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
    response_.content_length(response.body.size());
    if (!without_body_) response_.body() = std::move(response.body);
    http::async_write(stream_, response_, [self = shared_from_this()](error_code, std::size_t) {
      error_code ignored;
      self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
      self->close();
    });
  }

  beast::tcp_stream stream_;
  const HttpServer::Site& site_;
  const bool loopback_;
  bool without_body_ = false;
  beast::flat_buffer buffer_{HttpServer::kMaxHeaderBytes};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
};

// HOST:PORT or [HOST]:PORT, with the IP address of a NIC.
tcp::endpoint parse_endpoint(const std::string& text, error_code& error) {
  const auto colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host == "localhost") host = "127.0.0.1";
  const auto port = parse_whole<std::uint16_t>(colon == std::string::npos ? "" : text.substr(colon + 1));
  const auto address = asio::ip::make_address(host, error);
  if (!port) error = asio::error::invalid_argument;
  return {address, port.value_or(0)};
}

Error cannot_listen(const std::string& address, const error_code& error) {
  const bool taken = error == asio::error::address_in_use;
  return {taken ? ErrorKind::kExhausted : ErrorKind::kInvalid,
          "cannot serve metrics on " + address + ": " + error.message(),
          taken ? "another program holds this port: stop it, or choose another DEFT_METRICS"
                : "DEFT_METRICS is host:port with an address of this machine, or off",
          {}};
}

}  // namespace

// Says whether the acceptor waits for a client. The callback owns it, so it also ends if asio drops the callback: for lack of memory it
// cannot give a client that has come.
class Accepting {
 public:
  explicit Accepting(bool& flag) : flag_(&flag) { flag = true; }
  Accepting(Accepting&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
  Accepting& operator=(Accepting&&) = delete;
  ~Accepting() { end(); }
  void end() {
    if (flag_ != nullptr) *flag_ = false;
    flag_ = nullptr;
  }

 private:
  bool* flag_;
};

class HttpServer::Impl {
 public:
  Impl() : acceptor_(context_), pause_(context_), lasting_(context_.get_executor()) {}
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Gives the address with the port that was chosen.
  Result<std::string> listen(const std::string& address) {
    error_code error;
    const tcp::endpoint endpoint = parse_endpoint(address, error);
    if (!error) acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return tl::unexpected(cannot_listen(address, error));
    loopback_ = endpoint.address().is_loopback();
    return address.substr(0, address.rfind(':') + 1) + std::to_string(acceptor_.local_endpoint().port());
  }

  void start(Site site) {
    site_ = std::move(site);
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  asio::io_context& context() { return context_; }

 private:
  void run() {
    pthread_setname_np(pthread_self(), "deft-http");
    setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);
    while (!context_.stopped()) {
      try {
        accept();
        context_.run();
      } catch (const std::exception&) {  // no memory: this request ends, the next one may find some
        ++failures_;                     // to log it takes memory, too
        if (!accepting_) std::this_thread::sleep_for(kAcceptPause);
      }
    }
  }

  void accept() {
    if (accepting_) return;
    acceptor_.async_accept([this, accepting = Accepting(accepting_)](error_code error, tcp::socket socket) mutable {
      accepting.end();
      if (error) {
        pause_.expires_after(kAcceptPause);
        return pause_.async_wait([this](error_code) { accept(); });
      }
      accept();  // before take(), which may throw
      take(std::move(socket));
      report_failures();
    });
  }

  void take(tcp::socket socket) {
    std::erase_if(connections_, [](const auto& one) { return one.expired(); });
    if (connections_.size() >= kMaxConnections) {
      if (const auto oldest = connections_.front().lock()) oldest->close();
      connections_.pop_front();
    }
    const auto connection = std::make_shared<Connection>(std::move(socket), site_, loopback_);
    connections_.push_back(connection);
    connection->start();
  }

  // Once there is memory again.
  void report_failures() {
    if (failures_ == 0) return;
    LOG(ERROR) << failures_ << " requests for metrics failed for lack of memory";
    failures_ = 0;
  }

  Site site_;
  bool loopback_ = true;
  bool accepting_ = false;
  std::uint64_t failures_ = 0;
  std::deque<std::weak_ptr<Connection>> connections_;  // the oldest first
  asio::io_context context_;
  tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  asio::executor_work_guard<asio::io_context::executor_type> lasting_;  // the context stops by stop() alone
  std::thread thread_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::open(const std::string& address) {
  auto impl = std::make_unique<Impl>();
  auto bound = impl->listen(address);
  if (!bound) return tl::unexpected(bound.error());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl), *std::move(bound)));
}

void HttpServer::start(Site site) { impl_->start(std::move(site)); }

void HttpServer::stop() { impl_->stop(); }

void HttpServer::post(std::function<void()> callback) { asio::post(impl_->context(), std::move(callback)); }

void HttpServer::after(TimeUs delay_us, std::function<void()> callback) {
  const auto timer = std::make_shared<asio::steady_timer>(impl_->context(), std::chrono::microseconds(delay_us));
  timer->async_wait([timer, callback = std::move(callback)](error_code error) {
    if (!error) callback();
  });
}

}  // namespace deft::daemon
