// Says which link to open (LinkSpec) and with whom (Group). Members find each other through the store (Store).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"

namespace deft::link {

// One link as this node knows it, after names and patterns are resolved.
struct LinkSpec {
  std::string backend;    // "gloo"
  std::string interface;  // "eth0"; of ps the servers, "host:port+host:port"; empty if the backend chooses itself
  std::string address;    // the interface's address that peers connect to; empty if there is none
  [[nodiscard]] std::string name() const { return interface.empty() ? backend : backend + ":" + interface; }
  // The part that must be the same on all nodes: NICs may differ, servers may not.
  [[nodiscard]] std::string common() const { return backend == "ps" ? name() : backend; }
};

// A key-value store that the nodes of a job share, for rendezvous. Thread-safe; blocks.
class Store {
 public:
  virtual ~Store() = default;
  virtual Result<void> set(const std::string& key, std::span<const std::byte> value) = 0;
  // Waits until every key exists or `deadline_us` (LinkGroup::clock) has passed; a timeout names the missing keys. If the deadline is near
  // or has passed, it waits for kLeastPatienceUs: a value that is there must have time to come.
  static constexpr TimeUs kLeastPatienceUs = 100'000;
  virtual Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) = 0;
  // The job has ended: whoever opens a link gives up. A link that waits for its peers looks each kLookUs.
  static constexpr TimeUs kLookUs = 50'000;
  [[nodiscard]] virtual bool ended() const { return false; }
};

// The members of a link: nodes, or the ranks of a job if the link runs in the workers' processes.
struct LinkGroup {
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;
  std::string prefix;  // of store keys; different for each link of each job
  std::shared_ptr<Store> store;
  TimeUs connect_deadline_us = 0;         // by `clock`
  const Clock* clock = &machine_clock();  // it outlives the link, any thread reads it
  TimeUs silence_us = 10'000'000;  // a server, or the way to a peer of a tcp link, is lost after so long a silence
  std::string key_file = {};       // of the key that daemons and parameter servers share; empty: there is none
  std::string member = "node";     // the word for a member in messages
  std::vector<std::uint32_t> node_of = {};  // the node of each member, if members are ranks: each node is summed first
  // For links that tell nobody of a network that is lost: whoever runs a request calls it every kWaitingUs while it waits. May be empty.
  static constexpr TimeUs kWaitingUs = 100'000;
  std::function<void()> on_waiting = {};
  bool encrypts = false;  // what travels between members; the same for all of them

  [[nodiscard]] TimeUs now_us() const { return clock->now_us(); }
  [[nodiscard]] TimeUs left_us() const { return connect_deadline_us - now_us(); }  // to connect
};

}  // namespace deft::link
