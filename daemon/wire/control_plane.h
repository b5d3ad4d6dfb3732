// Control messages between daemons over ZeroMQ: one ROUTER socket that listens, one DEALER socket for each leader that
// this node follows. It carries bytes (daemon/wire/codec.h makes them) and knows nothing of jobs. A job sees it as a ControlPort, so
// that tests of a job need no network.
//
//   auto plane = ControlPlane::open(reactor, {.listen = "10.0.0.1:29610"});
//   (*plane)->on_message = [](const Peer& from, std::span<const std::byte> message) { ... };
//   auto leader = (*plane)->connect("10.0.0.2:29610");
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
#include "daemon/base/reactor.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class ControlPort {
 public:
  virtual ~ControlPort() = default;
  // A connection to another daemon's listening address. It is made in the background and repeated while it fails. An error: `address`
  // is no address.
  virtual Result<Peer> connect(const std::string& address) = 0;
  virtual void disconnect(const Peer& peer) = 0;
  // Never blocks. What cannot be delivered is dropped.
  virtual void send(const Peer& peer, const std::string& message) = 0;
};

class ControlPlane final : public ControlPort {
 public:
  struct Options {
    std::string listen;       // host:port
    std::string secret_file;  // empty: unguarded
  };

  static Result<std::unique_ptr<ControlPlane>> open(Reactor& reactor, const Options& options);
  ~ControlPlane() override;

  Result<Peer> connect(const std::string& address) override;
  void disconnect(const Peer& peer) override;
  void send(const Peer& peer, const std::string& message) override;

  std::function<void(const Peer& from, std::span<const std::byte> message)> on_message;

  // Messages that had not the two parts of a ROUTER's.
  [[nodiscard]] std::uint64_t rejected_messages() const { return rejected_; }

 private:
  ControlPlane(Reactor& reactor, std::string secret_key);
  Result<void> listen(const std::string& address);
  void guard(zmq::socket_t& socket, bool server);
  void watch(zmq::socket_t& socket);
  bool drain();  // all sockets; true: something was received
  bool drain_router();
  bool drain_dealer(const Peer& peer, zmq::socket_t& socket);
  void deliver(const Peer& from, const zmq::message_t& message);
  bool drain_authentication();

  Reactor& reactor_;
  zmq::context_t context_{1};
  zmq::socket_t authentication_;  // ZAP handler; bound only with a secret
  zmq::socket_t router_;
  std::map<Peer, zmq::socket_t> dealers_;
  std::string secret_key_, public_key_;  // Z85; empty: unguarded
  std::uint64_t next_dealer_ = 1;
  std::uint64_t rejected_ = 0;
  Reactor::PollerId poller_ = 0;
};

}  // namespace deft::daemon
