// One encrypted connection. It seals the bytes from a local socket and sends them over the wire, and opens the records that arrive there.
//
//   EncryptedConnection connection(std::move(wire), inner, plain);     // the two ends of a local pair; the user has `plain`
//   connection.note(of_wire);                                          // after each event of a socket, as edges
//   while (connection.advance(false)) ...                              // as far as it goes without waiting
//
// Belongs to one thread, except what says otherwise.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "core/base/descriptor.h"
#include "core/link/encryption/key_exchange.h"
#include "core/link/encryption/records.h"

namespace deft::link {

class EncryptedConnection {
 public:
  // A TCP connection to another member that is to be encrypted.
  struct Wire {
    std::uint32_t peer = 0;
    Descriptor socket;  // connected; it does not block
    ConnectionKeys keys;
  };

  EncryptedConnection(Wire wire, Descriptor inner, Descriptor plain);

  [[nodiscard]] std::uint32_t peer() const { return peer_; }           // any thread
  [[nodiscard]] int wire() const { return wire_.get(); }               // any thread
  [[nodiscard]] int inner() const { return inner_.get(); }             // any thread
  [[nodiscard]] Descriptor take_plain() { return std::move(plain_); }  // the user's thread
  // Any thread. Why the connection has ended; empty if it has not, or if the peer has closed it.
  [[nodiscard]] std::string failure() const;

  // The wire, or else the local socket, can do something that it could not do before.
  void note(bool of_wire);
  // Each direction a bit; whether one could go on at once. `last`: the user writes nothing more.
  bool advance(bool last);

  // The user has gone: bytes that he wrote are still sent, and bytes that come for him are not delivered.
  void leave();
  [[nodiscard]] bool sends() const { return !out_.over; }
  void shut();

 private:
  struct Out {
    explicit Out(const TrafficKey& key) : writer(key) {}
    RecordWriter writer;
    bool sealed_end = false;
    bool over = false, ready = false;  // ready: worth a try
  };
  struct In {
    explicit In(const TrafficKey& key) : reader(key) {}
    RecordReader reader;
    bool broken = false;
    bool over = false, ready = false;
  };
  bool send_some(bool last);
  bool receive_some();
  bool flush();      // to the wire; false if it has to wait or has failed
  bool deliver();    // to the local socket; the same
  bool read_wire();  // false if nothing is there
  void break_off(const std::string& cause);
  void hang_up();

  const std::uint32_t peer_;
  const Descriptor wire_, inner_;
  Descriptor plain_;  // until it is taken
  Out out_;
  In in_;
  mutable std::mutex mutex_;
  std::string failure_;  // guarded by mutex_
};

}  // namespace deft::link
