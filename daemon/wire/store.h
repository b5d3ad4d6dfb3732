// The job's key-value store, for the links' rendezvous: the leader holds it, every node reads and writes it.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/link/link.h"
#include "daemon/wire/control_plane.h"

namespace deft::daemon {

// On the leader. Reactor thread.
class StoreTable {
 public:
  using Reply = std::function<void(const Peer&, proto::StoreValue)>;
  explicit StoreTable(Reply reply) : reply_(std::move(reply)) {}
  void set(const proto::StoreSet& message);
  void get(const Peer& from, const proto::StoreGet& message);  // answered when all keys exist

 private:
  struct Waiter {
    Peer peer;
    proto::StoreGet request;
  };
  bool answer(const Waiter& waiter);
  Reply reply_;
  std::map<std::string, std::string> values_;
  std::vector<Waiter> waiters_;
};

// On every node: what link threads use. Requests go out through `send`, which is called on the reactor thread.
class StoreClient final : public link::Store {
 public:
  using Send = std::function<void(proto::Envelope)>;
  StoreClient(Reactor& reactor, Send send) : reactor_(reactor), send_(std::move(send)) {}

  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

  // The same without waiting, for what the workers ask: `answered` is called when the key exists, on the reactor thread, on
  // which this must be called, too.
  void ask(const std::string& key, std::function<void(std::span<const std::byte>)> answered);

  void arrived(const proto::StoreValue& message);  // reactor thread
  void cancel(const Error& reason);                // every waiting and later call fails; reactor thread

 private:
  using Values = Result<std::vector<std::vector<std::byte>>>;
  Reactor& reactor_;
  Send send_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::promise<Values>> waiting_;
  std::map<std::uint64_t, std::function<void(std::span<const std::byte>)>> asked_;  // reactor thread
  std::uint64_t next_request_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // read and written on the reactor thread
  Error cancelled_;
  bool is_cancelled_ = false;
};

}  // namespace deft::daemon
