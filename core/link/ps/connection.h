// A link's connection to one parameter server. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/link/curve/curve_key.h"
#include "core/link/ps/connection_watch.h"
#include "core/link/ps/wire.h"

namespace deft::link::ps_backend {

class ServerConnection {
 public:
  // Begins to connect; ZeroMQ goes on trying.
  ServerConnection(zmq::context_t& context, const CurveKey& key, std::string address, std::uint32_t index,
                   TimeUs silence_us);

  [[nodiscard]] const std::string& address() const { return address_; }
  void hello(const PsHeader& header, const Secret& secret, const std::string& link);

  // The data is not copied: it must stay until the answer has come or the connection is closed.
  void push(PsHeader header, std::span<const std::byte> recipe, std::span<std::byte> data);
  // Tells the server how many results were taken since the last push, if the server may wait for that.
  void report_taken();
  // To be called also while nothing is pushed: a whole message passes each way once in kPingUs.
  static constexpr TimeUs kPingUs = 60'000'000;
  void ping(TimeUs now_us);

  // Takes one message, if there is one. kResult is for the caller; all others are dealt with here, some of them in one call: a server that
  // sends them without an end holds nobody.
  struct Message {
    PsHeader header;
    zmq::message_t payload;
  };
  std::optional<Message> receive();

  [[nodiscard]] bool answered() const { return answered_; }
  [[nodiscard]] bool welcome() const { return welcome_; }
  [[nodiscard]] std::vector<std::uint32_t> absent() const;                    // nodes that this server has not seen yet
  [[nodiscard]] const std::optional<Error>& ended() const { return ended_; }  // why nothing more will come
  void check_alive();                                                         // ended() is set when the server is gone

  [[nodiscard]] zmq::pollitem_t messages() { return {dealer_.handle(), 0, ZMQ_POLLIN, 0}; }
  [[nodiscard]] zmq::pollitem_t events() { return watch_.events(); }
  [[nodiscard]] std::size_t unanswered() const { return unanswered_; }
  // The part of `traffic` that the kernel has counted.
  void count_pushes(PeerTraffic& traffic) const { watch_.count_pushes(traffic); }

 private:
  void refused();
  void on_notice(const PsHeader& header, const zmq::message_t& payload);

  const std::string address_;
  const bool has_key_;
  zmq::socket_t dealer_;
  ConnectionWatch watch_;
  bool answered_ = false;
  bool welcome_ = false;
  std::size_t unanswered_ = 0;
  std::uint64_t taken_ = 0;  // results
  std::uint64_t told_ = 0;   // of these
  TimeUs pinged_us_ = 0;
  std::vector<std::uint8_t> present_;
  std::optional<Error> ended_;
};

}  // namespace deft::link::ps_backend
