// A link: one way to run collectives between nodes (gloo on a NIC, MPI, parameter servers).
//
// A link belongs to one job and is used by one executor thread, which starts operations in the same order on all nodes.
//
//   auto specs = resolve_links("gloo:eth0,gloo:eth1", remote_peers);       // names to NICs and addresses
//   auto link = open_link(specs->front(), group);                          // blocks, with a deadline
//   (*link)->all_reduce(data, count, dtype, op);                           // in place
//   (*link)->abort("job failed: ...");                                     // from any thread: what is under way fails
//
// or with the next one on its way while the last one's results still come:
//
//   (*link)->start_all_reduce(first, count, dtype, op, urgency);
//   (*link)->start_all_reduce(second, count, dtype, op, urgency);          // where depth() is 2 or more
//   (*link)->finish_all_reduce();                                          // of the first
//
// Operations have no deadline of their own: a peer may be slow for minutes (a checkpoint, a debugger). The engine
// watches the time and calls abort() when a node is lost or a deadline of the job has passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/model/dtype.h"

namespace deft::link {

// One link as this node knows it, after names and patterns are resolved.
struct LinkSpec {
  std::string backend;    // "gloo"
  std::string interface;  // "eth0"; of ps the servers, "host:port+host:port"; empty where the backend chooses itself
  std::string address;    // the interface's address that peers connect to; empty where there is none
  [[nodiscard]] std::string name() const { return interface.empty() ? backend : backend + ":" + interface; }
  // What must be the same on all nodes: NICs may differ, servers may not.
  [[nodiscard]] std::string common() const { return backend == "ps" ? name() : backend; }
};

// Key-value store shared by the nodes of a job, for rendezvous. Thread-safe; blocks.
class Store {
 public:
  virtual ~Store() = default;
  virtual Result<void> set(const std::string& key, std::span<const std::byte> value) = 0;
  // Waits until every key exists or `deadline_us` (MonotonicClock) has passed; a timeout names the missing keys.
  virtual Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) = 0;
};

// The members that a link joins: nodes, or the ranks of a job for links that run in the workers.
struct Group {
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;
  std::string prefix;  // of store keys; different for each link of each job
  std::shared_ptr<Store> store;
  TimeUs connect_deadline_us = 0;           // MonotonicClock
  TimeUs silence_us = 10'000'000;           // a server that gives no sign of life for this long is lost
  std::string member = "node";              // what messages call a member
  std::vector<std::uint32_t> node_of = {};  // of each member, where members are ranks: those of a node are summed first
};

class Link {
 public:
  virtual ~Link() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;

  // In place, over `count` elements; blocks. Bit-identical results on all nodes.
  virtual Result<void> all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) = 0;

  // The same in two halves. start_all_reduce begins an operation behind those under way, and returns without waiting for
  // peers; finish_all_reduce waits for the oldest one. At most depth() may be under way, and no other collective
  // meanwhile. When to start and to finish is each node's own affair; only the order of the starts is the same on all.
  // After an error of either, nothing is under way any more and no data is touched; only a refusal (kInvalid) of
  // start_all_reduce leaves everything as it was.
  //
  // `urgency`: how soon the next forward needs it, 0 first; the same on all nodes. A link may carry urgent ones before older
  // ones, and many carry all in the order of their starts.
  //
  // By default start_all_reduce does it all and finish_all_reduce gives the result.
  [[nodiscard]] virtual std::size_t depth() const { return 1; }
  virtual Result<void> start_all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                        std::uint32_t /*urgency*/) {
    ended_ = all_reduce(data, count, dtype, op);
    const bool refused = !ended_ && ended_.error().kind == ErrorKind::kInvalid;
    return refused ? ended_ : Result<void>{};
  }
  virtual Result<void> finish_all_reduce() { return ended_; }

  // The same, of the first one that can end: gives its place among those under way, 0 for the oldest. Only more urgent
  // ones end before older ones. Nothing where wake() came and none has ended: there may be one to start.
  virtual Result<std::optional<std::size_t>> finish_next() {
    if (auto ok = finish_all_reduce(); !ok) return tl::unexpected(ok.error());
    return 0;
  }
  // Any thread. Links whose finish_next keeps the order need not listen.
  virtual void wake() {}

  // Another way over the same NIC, for what is small and urgent: all-reduces on it wait for none of this link's. A link of
  // its own for another thread, with the life of this one; abort() of this one aborts it, too. Null: there is none.
  [[nodiscard]] virtual Link* express() { return nullptr; }

  // `root`'s bytes to all nodes, in place.
  virtual Result<void> broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) = 0;

  // `data` holds the blocks of all nodes one behind the other, of bytes[node] each; this node's own block is in place.
  virtual Result<void> all_gather(std::byte* data, std::span<const std::size_t> bytes) = 0;

  // Makes what is under way and all later operations fail with `reason`, promptly. Any thread; more than once is harmless.
  virtual void abort(std::string_view reason) = 0;

 private:
  Result<void> ended_;  // of the operation that start_all_reduce has run
};

// Resolves DEFT_LINKS: a comma-separated list of backend:place.
//   gloo:PATTERN         on NICs: a NIC's name, a prefix (`eth`), an exact name (`=eth0`) or exclusions (`^lo,docker` stand for
//                        all usable NICs but these); more names may follow without the backend (`gloo:eth0,eth1`)
//   gloo:auto, gloo      all usable NICs, and loopback only where there is nothing else and `loopback_allowed` (all peers
//                        are on this machine); `auto` alone means the same
//   ps:HOST:PORT+HOST:PORT   through these parameter servers together
//   mpi:PATTERN          Open MPI over TCP on NICs, as with gloo; `mpi` alone lets it choose by its own parameters
// An error names the NIC and lists the ones that exist.
Result<std::vector<LinkSpec>> resolve_links(std::string_view grammar, bool loopback_allowed);

// "gloo:eth0 (10.0.0.1), ps:10.0.0.9:29610": what the names were resolved to, for people.
std::string describe(std::span<const LinkSpec> specs);

// Opens the link to all peers; a timeout names the nodes that did not come.
Result<std::unique_ptr<Link>> open_link(const LinkSpec& spec, const Group& group);

// The same for backends that run in the workers (Backend::runs_in_worker), and for these alone: it needs none of the
// libraries of the others.
Result<std::unique_ptr<Link>> open_worker_link(const LinkSpec& spec, const Group& group);

}  // namespace deft::link
