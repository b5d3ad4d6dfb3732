// The job's key-value store, which the links use to find their peers. The leader holds it; every node reads and writes it.
//
//   StoreTable store([&](const Peer& to, wire::StoreValue value) { send(to, value); });
//   store.get(peer, {.request = 1, .keys = {"a", "b"}});   // answered once both keys exist
//   store.set({"a", bytes});                              // an empty value takes the key away
//
// Cost of a set: the requests that wait for that key. Errors: kExhausted, if the job stores or waits for too much.
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class StoreTable {
 public:
  using Reply = std::function<void(const Peer&, wire::StoreValue)>;
  struct Limits {
    std::size_t keys = 1 << 20;
    std::size_t bytes = std::size_t{1} << 30;  // of all keys and values
    std::size_t waits = 1 << 23;               // keys that requests wait for: 1,000 NCCL ranks wait for 10^6
  };

  explicit StoreTable(Reply reply) : StoreTable(std::move(reply), Limits()) {}
  StoreTable(Reply reply, const Limits& limits) : reply_(std::move(reply)), limits_(limits) {}

  // A key that exists gets the new value. An empty value takes the key away, as if it had never been set.
  Result<void> set(wire::StoreSet message);
  Result<void> get(const Peer& from, wire::StoreGet message);

 private:
  struct Request {
    Peer from;
    wire::StoreGet get;
    std::size_t missing = 0;  // keys
  };
  // Answers it, or lets it wait for the keys that are missing.
  Result<void> serve(const std::shared_ptr<Request>& request);
  void erase(const std::string& key);
  void answer(const Request& request);

  Reply reply_;
  const Limits limits_;
  std::unordered_map<std::string, std::vector<std::byte>> values_;
  std::unordered_map<std::string, std::vector<std::shared_ptr<Request>>> waiting_;  // by the missing key
  std::size_t bytes_ = 0, waits_ = 0;
};

}  // namespace deft::daemon
