// Bounds the memory that connections of the control port take before their messages are read.
//
//   ConnectionBudget budget(reactor);
//   budget.watch(fds, port);                          // new connections
//   budget.delivered(frame, wire_bytes, is_member);   // a message was received and heard
//   budget.set_messages_wait(true);                   // after each drain of the sockets
//
// Nodes of a job may bring many messages at once. Strangers share a small part: a member is never ended because of them. Who brings more
// is ended and counted, the largest one first. Some time later the heap gives back the pages that it took for them. Reactor thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include <zmq.hpp>

#include "core/link/curve/unfinished_messages.h"
#include "daemon/base/rate_limit.h"
#include "daemon/base/reactor.h"

namespace deft::daemon {

class ConnectionBudget {
 public:
  // `reactor` outlives this object.
  explicit ConnectionBudget(Reactor& reactor) : reactor_(reactor) {}
  ~ConnectionBudget();
  ConnectionBudget(const ConnectionBudget&) = delete;
  ConnectionBudget& operator=(const ConnectionBudget&) = delete;

  // `port`: of one end of these connections.
  void watch(const std::vector<int>& connections, std::uint16_t port);
  // `frame`: of a message of `wire_bytes`. `is_member`: a job has taken it.
  void delivered(const zmq::message_t& frame, std::uint64_t wire_bytes, bool is_member);
  // Whether a job has taken a message of the connection that this one came by.
  [[nodiscard]] bool knows(const zmq::message_t& frame) const { return unfinished_.knows(frame); }
  // Whether the sockets had more than was received from them.
  void set_messages_wait(bool wait) { messages_wait_ = wait; }
  [[nodiscard]] std::uint64_t ended() const { return ended_; }  // connections

 private:
  void look();
  void look_later();
  void give_back_later();

  Reactor& reactor_;
  link::UnfinishedMessages unfinished_;
  Reactor::TimerId look_ = 0;  // 0: there is no connection
  TimeUs look_due_us_ = 0;
  Reactor::TimerId give_back_ = 0;  // 0: nothing was ended
  bool gives_back_again_ = false;   // something was ended since the timer was set
  bool messages_wait_ = false;
  std::uint64_t ended_ = 0;
  RateLimit lines_;
};

}  // namespace deft::daemon
