// The key that daemons and their parameter servers share (option secret_file; `deft keygen` makes one), and how sockets use it.
//
//   const auto key = CurveKey::read(path);     // an empty path: an empty key, which guards nothing
//   CurveGate gate;
//   gate.open(context, *key);                  // the side that listens; before it binds
//   key->guard_listener(router);
//   key->guard_caller(dealer);                 // the side that connects; before it does so
//   while (...) refused += gate.turn();        // when gate.socket() is readable
//
// With a key ZeroMQ encrypts all that passes (CURVE), and both sides prove that they hold the key before either sees a message.
#pragma once

#include <string>
#include <zmq.hpp>

#include "core/base/status.h"

namespace deft::link {

class CurveKey {
 public:
  CurveKey() = default;
  // kInvalid, with what to do: the file cannot be read, or holds no key.
  static Result<CurveKey> read(const std::string& path);

  [[nodiscard]] bool empty() const { return secret_.empty(); }
  [[nodiscard]] const std::string& open() const { return open_; }  // the half that is no secret
  void guard_listener(zmq::socket_t& socket) const;
  void guard_caller(zmq::socket_t& socket) const;

 private:
  std::string secret_, open_;  // Z85
};

// Who besides its owner may read or change the key in this file, as "everyone" or "the group deft"; empty: nobody. A group without an
// entry in the machine's database has no members but the daemon: so it is in a container, whose volumes belong to such a group.
std::string other_readers(const std::string& path);

// Lets in whoever holds the key (ZAP, ZeroMQ RFC 27), and nobody else. One for each ZeroMQ context. One thread at a time.
class CurveGate {
 public:
  // An empty key needs no gate: nothing is opened.
  void open(zmq::context_t& context, const CurveKey& key);
  [[nodiscard]] bool is_open() const { return static_cast<bool>(socket_); }
  [[nodiscard]] zmq::socket_t& socket() { return socket_; }

  struct Turn {
    unsigned admitted = 0, refused = 0;
  };
  // Answers those who knock, a bounded number of them.
  Turn turn();

 private:
  zmq::socket_t socket_;
  std::string open_;
};

}  // namespace deft::link
