// A node's part when a link is lost while others are left (daemon/channel/link_queue.h says which launches are replayed, and why):
//
//   the link fails here, or the leader sees that it stalls ->  LINK_FAILED to the leader
//   LINK_STOP     every node ends its driver of that link, so that nothing touches the gradients any more
//   LINK_STOPPED  -> the leader, with the first launch that has not finished here; the smallest of all counts
//   LINK_REPLACED every node opens another link of its own, over the NIC or servers that the leader chose, in the place of the lost
//                 one, and runs the launches from that number on: finished ones from the copies that it kept, the others as they are
//
// The order of the launches of that link stays as it was, and no other link's is touched: nothing can come to wait in a circle.
// The policies are told at once and choose the link no more; plans leave it with the next one.
//
//   if (!recovery.failed(link, error)) suspect(error);   // false: this link cannot be replaced
//   recovery.stop(message);                              // then poll() every few milliseconds until it says false
//   recovery.replace(message);  recovery.release(message);
//
// No I/O but through the leader's port and the set's drivers. Reactor thread.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "daemon/node/leader_port.h"
#include "daemon/node/link_set.h"

namespace deft::daemon {

class LinkRecovery {
 public:
  // `host`: this node's, for errors. Both references outlive this object.
  LinkRecovery(LinkSet& links, LeaderPort& leader, std::string job, std::string host)
      : links_(links), leader_(leader), job_(std::move(job)), host_(std::move(host)) {}

  // Asks the leader to go on without the link. False if the job cannot: no other link, or it is not the link's fault.
  bool failed(std::size_t link, const Error& error);
  // The leader ends a link.
  void stop(const wire::LinkStop& message);
  // Tells the leader of each link that has come to its end. True: there are links that have not, ask again soon.
  bool poll();
  // An error ends the job: something that should run again was not kept.
  Result<void> replace(const wire::LinkReplaced& message);
  // All nodes have finished so much: it need not be kept any more.
  void release(const wire::JobProgress& progress);
  void report_progress();

 private:
  LinkSet& links_;
  LeaderPort& leader_;
  const std::string job_, host_;
};

}  // namespace deft::daemon
