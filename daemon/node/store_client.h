// A node's side of the job's key-value store (daemon/leader/store_table.h), for the rendezvous of links.
//
//   auto store = std::make_shared<StoreClient>(reactor, [&](wire::ToLeader message) { port.send(std::move(message)); });
//   store->set("key", bytes);                          // any thread
//   auto values = store->get(keys, deadline_us);       // reactor.clock(); any thread but the reactor's: it blocks until all keys exist
//   store->arrived(value);                             // reactor thread, as the leader's answer comes
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/link/link.h"
#include "daemon/base/reactor.h"
#include "daemon/wire/messages.h"

namespace deft::daemon {

class StoreClient final : public link::Store {
 public:
  using Send = std::function<void(wire::ToLeader)>;  // called on the reactor thread
  // If a thread's request cannot be sent, the owner for whom this is made fails. `reactor` outlives this object.
  StoreClient(Reactor& reactor, Send send) : reactor_(reactor), owner_(current_owner()), send_(std::move(send)) {}

  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

  [[nodiscard]] bool ended() const override;

  // The calls of workers, which come on the reactor thread. Both are sent at once and keep their place among all that a
  // worker asks its daemon for: a key that it asks for after it was set, or after a barrier, is not older than that.
  void set_now(const std::string& key, std::span<const std::byte> value);
  // Does not wait: `answered` is called on the reactor thread when the key exists.
  void ask(const std::string& key, std::function<void(std::span<const std::byte>)> answered);

  void arrived(wire::StoreValue message);  // reactor thread
  void cancel(const Error& reason);        // every waiting and later call fails; reactor thread

  // How many keys a request asks for. Empty: it does not await an answer.
  [[nodiscard]] std::optional<std::size_t> keys_asked(std::uint64_t request);

 private:
  using Values = Result<std::vector<std::vector<std::byte>>>;
  struct Waiting {
    std::size_t keys = 0;
    std::promise<Values> promise;
  };
  Reactor& reactor_;
  const OwnerRef owner_;
  Send send_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::map<std::uint64_t, std::function<void(std::span<const std::byte>)>> asked_;  // reactor thread
  std::uint64_t next_request_ = 1;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // read and written on the reactor thread
  Error cancelled_;
  bool is_cancelled_ = false;
};

}  // namespace deft::daemon
