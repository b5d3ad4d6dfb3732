// Control messages between daemons over ZeroMQ: one ROUTER socket that listens, one DEALER socket for each leader that
// this node follows. It carries bytes (daemon/wire/codec.h makes them) and knows nothing of jobs. A job sees it as a ControlPort, so
// that tests of a job need no network.
//
//   auto plane = ControlPlane::open(reactor, {.listen = "10.0.0.1:29610"});
//   (*plane)->on_message = [](const Peer& from, std::span<const std::byte> message) { ... return is_member; };
//   auto leader = (*plane)->connect("10.0.0.2:29610", user);
//   (*plane)->send(*leader, wire::encode(header, message));
//
// Delivery is ordered while the connection lives. A peer that is gone is noticed by its silence (heartbeats), not here.
// With a secret, both sides must hold the same CURVE key; others cannot connect. Reactor thread only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <zmq.hpp>

#include "core/base/status.h"
#include "core/link/curve/curve_key.h"
#include "core/link/curve/handshake_watch.h"
#include "daemon/base/rate_limit.h"
#include "daemon/base/reactor.h"
#include "daemon/wire/connection_budget.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class ControlPort {
 public:
  virtual ~ControlPort() = default;
  // A connection to another daemon's listening address, which `user` has named. It is made in the background and repeated while it
  // fails. An error: `address` is no address.
  virtual Result<Peer> connect(const std::string& address, uid_t user) = 0;
  virtual void disconnect(const Peer& peer) = 0;
  // Never blocks. What cannot be delivered is dropped.
  virtual void send(const Peer& peer, const std::string& message) = 0;
  // The daemon that connect() was told of ended the newest connection before a message could pass: it has another key, or only one of
  // the two has one. Or it is none.
  [[nodiscard]] virtual bool is_locked_out(const Peer& /*peer*/) const { return false; }
  // The name that connect() was given has no address so far. Messages to this peer are dropped.
  [[nodiscard]] virtual bool is_nowhere(const Peer& /*peer*/) const { return false; }
};

class ControlPlane final : public ControlPort {
 public:
  struct Options {
    std::string listen;       // host:port
    std::string secret_file;  // empty: unguarded
  };

  // `reactor` outlives the plane. Errors: the address cannot be listened on, or the secret file cannot be read.
  static Result<std::unique_ptr<ControlPlane>> open(Reactor& reactor, const Options& options);
  ~ControlPlane() override;

  Result<Peer> connect(const std::string& address, uid_t user) override;
  void disconnect(const Peer& peer) override;
  void send(const Peer& peer, const std::string& message) override;
  [[nodiscard]] bool is_locked_out(const Peer& peer) const override;
  [[nodiscard]] bool is_nowhere(const Peer& peer) const override;

  // Gives whether its sender takes part in a job here.
  std::function<bool(const Peer& from, std::span<const std::byte> message)> on_message;

  // A message could not be queued for this peer, which has not read tens of thousands: what follows it makes no sense any more.
  std::function<void(const Peer& to)> on_stuck;

  struct Refused {
    std::uint64_t messages = 0;    // had not the two parts of a ROUTER's, or were too large for a stranger's
    std::uint64_t locked_out = 0;  // connections that did not hold the key
    std::uint64_t handshakes = 0;  // connections that did not get through ZeroMQ's greeting
  };
  [[nodiscard]] const Refused& refused() const { return refused_; }
  [[nodiscard]] std::uint64_t endless() const { return guard_.budget.ended(); }  // connections whose message had no end

 private:
  ControlPlane(Reactor& reactor, link::CurveKey key);
  Result<void> listen(const std::string& address);
  static void set_up(zmq::socket_t& socket);
  void resolve(const Peer& peer, uid_t user, const std::string& host, const std::string& port);
  void watch(zmq::socket_t& socket);
  void report_stuck(const Peer& peer);
  bool drain();  // all sockets, if one may have something; true: something was received
  bool drain_router();
  struct Round;
  struct Dealer {
    zmq::socket_t socket;
    link::HandshakeWatch watch;
    std::uint16_t port = 0;  // of the other daemon
    bool locked_out = false;
    bool has_address = false;  // without one ZeroMQ has no queue for it, and takes no message
  };
  bool drain_dealer(const Peer& peer, Dealer& dealer);
  bool watch_handshakes(Dealer& dealer);
  bool deliver(const Peer& from, const zmq::message_t& message);  // gives on_message's answer
  bool drain_gate();

  Reactor& reactor_;
  zmq::context_t context_{1};
  zmq::socket_t router_;
  std::map<Peer, Dealer> dealers_;
  struct Guard {
    link::CurveKey key;    // empty: unguarded
    link::CurveGate gate;  // open only with a key
    link::HandshakeWatch watch;
    std::uint16_t port = 0;  // at which the router listens
    ConnectionBudget budget;
  };
  Guard guard_;
  std::uint64_t next_dealer_ = 1;
  Refused refused_;
  struct LogLines {  // that users and strangers can cause
    RateLimit unknown_names, unsent, refused;
  };
  LogLines lines_;
  struct Polling {
    Reactor::PollerId poller = 0;
    // A socket may have something to receive. Asking one costs a system call, and the reactor asks in every round.
    bool is_due = true;
  };
  Polling polling_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // gone: a name that is found now is for nobody
};

}  // namespace deft::daemon
