// A link: one way to run collectives between nodes (gloo on a NIC, Open MPI, parameter servers, NCCL, TCP).
//
// A link works like a queue pair of verbs: one thread submits requests and polls for completions.
//
//   auto specs = resolve_links("gloo:eth0,gloo:eth1", loopback_allowed);       // names to NICs and addresses
//   auto link = open_link(specs->front(), group);                              // blocks, with a deadline
//   (*link)->submit(WorkRequest::all_reduce(first, count, dtype, op, 1));      // does not wait for peers
//   (*link)->submit(WorkRequest::all_reduce(second, count, dtype, op, 2));
//   auto completion = (*link)->poll();                                         // waits; names a request by its id
//   (*link)->run(WorkRequest::broadcast(data, bytes, 0));                      // or submits one and waits for it
//   (*link)->abort("job failed: ...");                                         // any thread: everything in flight fails
//
// All nodes submit the same requests in the same order, each at its own time. The data belongs to the link from submit()
// until the completion, or until an error. After an error nothing is in flight and no data is touched any more; all later
// calls give the same error. A refusal (kInvalid, from submit() alone) leaves everything as it was.
//
// Requests have no deadline: a peer may be slow for minutes (a checkpoint, a debugger). The caller watches the time, and
// calls abort() when a node is lost or a deadline of the job has passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/link/failure.h"
#include "core/link/group.h"
#include "core/link/slices.h"
#include "core/link/work_queue.h"
#include "core/link/work_request.h"
#include "core/model/dtype.h"

namespace deft::link {

class Link {
 public:
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }

  [[nodiscard]] std::uint32_t nodes() const { return nodes_; }

  // Queues a request. The link starts it as soon as it can; how many are on the wire is the link's own affair.
  Result<void> submit(WorkRequest request);

  // Waits for the next completion. Requests of one priority complete in the order of their submission, except that a link may
  // send small ones apart from the others. Empty at once if nothing is in flight, or if interrupt() was called and nothing has
  // completed. Links of which Backend::receives_unasked is true are to be polled every kUnaskedUs, also while nothing is in flight.
  static constexpr TimeUs kUnaskedUs = 100'000;
  Result<std::optional<Completion>> poll();

  // Ends a poll() that waits, or else the next one that would wait. Links that cannot be interrupted wait for a completion.
  // Any thread.
  void interrupt();

  // Makes everything in flight and all later requests fail with `reason`, promptly. Any thread; more than once is harmless.
  void abort(std::string_view reason);

  // True if nothing is in flight.
  [[nodiscard]] bool idle() const;

  // True if an all-reduce is composed here of a reduce-scatter, the owner's stage and an all-gather. Otherwise the backend
  // reduces natively (on parameter servers, in NCCL), and refuses a request with an owner's stage, unless
  // Backend::adds_encoded says that it takes it for encoded elements and for kReduceByAll.
  [[nodiscard]] virtual bool composes() const { return true; }

  // Submits a request and waits for its completion. kInvalid if the link is not idle.
  Result<void> run(WorkRequest request);

  // The elements of a reduction that this node owns: of a reduce-scatter its result.
  [[nodiscard]] Range owned(const WorkRequest& request) const { return request.owned_by(node_, nodes_); }

 protected:
  // `depth`: how many requests may be on the wire. Requests of a second sequence overtake those of the first one;
  // `second_depth` is 0 in a link that has none.
  Link(std::string name, const LinkGroup& group, std::size_t depth, std::size_t second_depth = 0);

  // The backend's part. submit(), poll() and the destructor are of one thread, and so are these three:
  // Begins a request, for which there is room; does not wait for peers. An error fails the link.
  virtual Result<void> start(const WorkRequest& request) = 0;
  // Waits for a request that has ended, and gives its id; empty after an interrupt. An error fails the link. With nothing in flight, if
  // Backend::receives_unasked: takes what has come, and does not wait.
  virtual Result<std::optional<std::uint64_t>> await() = 0;
  // The link has failed. When it returns, no data is touched any more. More than once is harmless.
  virtual void settle() = 0;

  // Any thread: makes start() and await() fail, now and later.
  virtual void stop(const Error& reason) = 0;
  // Any thread: ends an await().
  virtual void interrupt_await() {}
  // True if a request belongs to the second sequence. The same on all nodes.
  [[nodiscard]] virtual bool overtakes(const WorkRequest& /*request*/) const { return false; }

  [[nodiscard]] bool failed() const { return !failure_.check(); }

 private:
  Result<void> check_failure();
  tl::unexpected<Error> fail_with(const Error& error);
  Result<void> start_what_fits(WorkQueue& queue);

  const std::string name_;
  const std::string member_;  // the word for a member in messages
  const std::uint32_t node_;
  const std::uint32_t nodes_;
  WorkQueue queue_;
  WorkQueue overtaking_;
  std::deque<Completion> completed_;  // at once: a node that is alone, or no elements
  Failure failure_;
};

// Resolves DEFT_LINKS: a comma-separated list of backend:place.
//   gloo:PATTERN         on NICs: a NIC's name, a prefix (`eth`), an exact name (`=eth0`) or exclusions (`^lo,docker` stand for
//                        all usable NICs but these); more names may follow without the backend (`gloo:eth0,eth1`)
//   gloo:auto, gloo      all usable NICs; loopback only if there is nothing else and `loopback_allowed` (all peers are on this
//                        machine); `auto` alone means the same
//   ps:HOST:PORT+HOST:PORT   through these parameter servers together
//   mpi:PATTERN          Open MPI over TCP on NICs, as with gloo; `mpi` alone lets it choose by its own parameters
// An error names the NIC and lists the NICs that exist.
Result<std::vector<LinkSpec>> resolve_links(std::string_view grammar, bool loopback_allowed);

// kInvalid if no machine could resolve the list: its form is wrong, or there is no such backend. Looks at no NIC.
Result<void> check_links(std::string_view grammar);

// "gloo:eth0 (10.0.0.1), ps:10.0.0.9:29610": the resolved names, for people.
std::string describe(std::span<const LinkSpec> specs);

// Opens the link to all peers; a timeout names the nodes that did not come.
Result<std::unique_ptr<Link>> open_link(const LinkSpec& spec, const LinkGroup& group);

// The same for in-process links (Backend::runs_in_workers), and for these alone: it needs no library of the other links.
Result<std::unique_ptr<Link>> open_worker_link(const LinkSpec& spec, const LinkGroup& group);

}  // namespace deft::link
