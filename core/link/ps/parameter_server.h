// A parameter server: adds the segments that the nodes of each ps link push, and gives the sums back. `deftd server`
// runs one.
//
//   auto server = ParameterServer::open({.listen = "10.0.0.9:29610", .log = ...});
//   (*server)->run(stop_fd);      // until stop_fd is readable and the jobs that use it have ended
//
// One thread. For each link and node it keeps the segments of running rounds (kWindow, and two of the oldest round) and as many
// results that the node has not taken yet, and nothing else. Links of different jobs do not see each other: who does not know the secret
// of a link gets into none but links of its own. With a key (core/link/curve) nobody else can connect. What strangers send is dropped and
// counted by reason; a connection that says nothing holds nobody up.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/link/curve/curve_key.h"
#include "core/link/curve/handshake_watch.h"
#include "core/link/curve/unfinished_messages.h"
#include "core/link/ps/served_link.h"

namespace deft::link::ps_backend {

class ParameterServer {
 public:
  struct Options {
    std::string listen;                           // host:port; port * is any free one
    std::string key_file;                         // of the key that guards it; empty: none
    std::function<void(const std::string&)> log;  // a line when a link's nodes come or go; may be empty
    std::function<void()> on_turn;                // at least once a second; may be empty
    TimeUs grace_us = 0;  // how long run() goes on for links that are open when it is told to stop
  };
  static Result<std::unique_ptr<ParameterServer>> open(Options options);
  ~ParameterServer();

  // Returns when `stop_fd` has become readable and no link is open, or the grace has passed, or it became so twice.
  void run(int stop_fd);

  [[nodiscard]] const std::string& address() const { return address_; }  // with the port that it got

  // Why it took no notice of a message or a connection.
  enum class Drop : std::uint8_t {
    kUnreadable,
    kOtherVersion,
    kBadHello,
    kRefused,
    kStranger,
    kKey,
    kHandshake,
    kFull,
    kEndless  // a message has no end
  };
  static constexpr std::array<std::string_view, 9> kDropNames = {
      "unreadable", "version", "hello", "refused", "stranger", "key", "handshake", "full", "endless"};
  [[nodiscard]] const std::array<std::uint64_t, kDropNames.size()>& drops() const { return drops_; }
  [[nodiscard]] std::size_t links() const { return links_.size(); }

 private:
  struct Member {
    std::string link;  // the secret and the name
    std::uint32_t node = 0;
  };
  ParameterServer(Options options, CurveKey key);
  Result<void> listen();
  bool receive_one();
  void on_message(const std::string& peer, const zmq::message_t& first, zmq::message_t payload);
  void on_hello(const std::string& peer, const PsHeader& header, const zmq::message_t& payload);
  bool send(const std::string& peer, const PsHeader& header, zmq::message_t& payload);
  void send_to_member(const std::string& link, std::uint32_t node, const PsHeader& header, zmq::message_t& payload);
  void refuse(const std::string& peer, Drop why, const Error& error);
  void drop(Drop why) { ++drops_[static_cast<std::size_t>(why)]; }
  void watch_connections();
  void find_the_gone(const std::string& link);
  void ping(const std::string& peer);
  void put_away_the_gone();
  void wait(int stop_fd);
  void on_stop(int stop_fd);
  void log(const std::string& line) const;

  Options options_;
  zmq::context_t context_{1};
  zmq::socket_t router_;
  struct Guard {
    CurveKey key;
    CurveGate gate;  // open only with a key
    HandshakeWatch watch;
    UnfinishedMessages unfinished;
    std::uint16_t port = 0;  // at which the router listens
  };
  Guard guard_;
  std::string address_;
  std::map<std::string, Member> members_;                               // by ZeroMQ's identity of the connection
  std::map<std::pair<std::string, std::uint32_t>, std::string> peers_;  // identity by link and node
  std::map<std::string, std::unique_ptr<ServedLink>> links_;
  std::vector<std::string> gone_;
  std::vector<TimeUs> checks_;  // when to look for connections that have ended
  struct Stop {
    bool begun = false;
    bool done = false;
    TimeUs at_us = 0;  // the end of the grace
  };
  Stop stop_;
  std::array<std::uint64_t, kDropNames.size()> drops_{};
};

}  // namespace deft::link::ps_backend
