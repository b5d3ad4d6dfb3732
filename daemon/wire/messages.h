// The messages between a node of a job and the job's leader, as plain data. daemon/wire/codec.h turns them into bytes.
//
//   ToLeader message = StepTime{.us = 1200};          // a node sends these
//   ToNode message = LinkStop{.link = 1, .epoch = 0, .cause = error};   // the leader sends these
//   std::visit(handler, message);
//
// proto/control.proto says when each message is sent. Ranks count workers of the whole job; nodes are numbered from 0 in the
// order of their smallest rank; launches and collectives of a job have one common count, their number. What a message means
// for its receiver, for instance that a link exists, is checked by decode() and not by these types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/ipc/messages.h"
#include "core/model/buckets.h"
#include "core/model/plan.h"
#include "core/model/tensors.h"
#include "daemon/wire/codec_time.h"
#include "daemon/wire/stalls.h"
#include "daemon/wire/trace_order.h"

namespace deft::daemon {

using Peer = std::string;  // names a connection of the control plane; empty: this daemon's own node

namespace wire {

struct LinkAddress {
  std::string name = {};     // backend:interface
  std::string address = {};  // of the node that tells it
  bool operator==(const LinkAddress&) const = default;
};

// --- Both ways ---
struct Heartbeat {
  bool reply = false;                   // false: the receiver answers it
  TimeUs sent_us = 0, answered_us = 0;  // for traces: by MonotonicClock; of a reply: when the question was sent
};

struct Failure {
  Error error = {};
  bool suspected = false;  // to the leader: a link failed, and the leader finds out whether a node was lost
};

struct Leave {  // these ranks ended cleanly
  std::vector<std::uint32_t> ranks = {};
};

// --- From a node to the leader ---
struct Join {
  std::string host = {}, deft_version = {}, token = {};
  std::uint32_t world = 0, user = 0;                 // user: whose workers they are; token: of the job, if it has one
  std::vector<std::uint32_t> ranks = {};             // by local rank
  std::map<std::string, std::string> settings = {};  // options on which all nodes must agree
  std::vector<LinkAddress> links = {};
  std::optional<Error> refusal = {};  // why this node cannot take part: all are told once all have come
};

struct LinksOpen {};
struct Declare {
  std::uint32_t group = 0;
  std::string name = {};
  std::vector<model::TensorSpec> tensors = {};
  std::uint32_t slots = 1;
  model::ReduceOp op = model::ReduceOp::kSum;
};

struct Release {  // all workers of a node have released the group
  std::uint32_t group = 0;
};

// What one worker asked for. A barrier keeps the defaults behind `collective`, but for its terms.
struct CollectiveSpec {
  std::uint32_t rank = 0;
  ipc::Collective collective = ipc::Collective::kBarrier;
  model::DType dtype = model::DType::kFloat32;
  model::ReduceOp op = model::ReduceOp::kSum;
  std::uint32_t root = 0;      // not checked by decode(): a root that is no rank fails the collective and not the job
  std::uint64_t count = 0;     // elements; all-gather: of this rank's own block
  std::uint64_t capacity = 0;  // all-gather: elements of all blocks
  std::string terms = {};      // words for the user, which must be the same on all ranks
};

struct CollectiveReady {
  std::string name = {};
  std::vector<CollectiveSpec> specs = {};  // by local rank
};

struct GradientStatistics {  // of one group and step, summed over the workers of a node
  std::uint32_t group = 0;
  std::uint64_t step = 0;  // grows with each message of a node
  std::uint32_t ranks = 0;
  double local_norms = 0;    // squared
  double average_norms = 0;  // squared
  double loss = 0;
  double learning_rate = 0;  // the largest of the workers', as the next
  double target = 0;
  bool merged_as_sums = false;
};

struct StepTime {  // of the slowest worker of a node, waiting left out
  double us = 0;
  std::vector<CodecTime> codecs = {};  // that the node has used
};

struct StoreSet {
  std::string key = {};
  std::vector<std::byte> value = {};  // empty: the key goes
};

struct StoreGet {
  std::uint64_t request = 0;  // the node's number for it, returned in StoreValue
  std::vector<std::string> keys = {};
};

struct LinkFailed {
  std::uint32_t link = 0, epoch = 0;  // the epoch of a link counts its replacements
  Error cause = {};
};

struct LinkStopped {  // nothing runs on the link any more
  std::uint32_t link = 0, epoch = 0;
  std::uint64_t finished_below = 0;  // all launches of this link before this number have finished on this node
};

struct NodeProgress {  // how far a node is
  struct Link {
    std::uint32_t epoch = 0;
    std::uint64_t finished_below = 0;
    std::uint64_t started_below = 0;  // given to the link
  };
  std::vector<Link> links = {};
};

// --- From the leader to a node ---
struct NodeInfo {
  std::string host = {};
  std::vector<std::uint32_t> ranks = {};  // by local rank
  std::vector<LinkAddress> links = {};
};

struct Joined {
  std::vector<NodeInfo> nodes = {};
  std::uint32_t node = 0;  // the receiver's index
};

struct Begin {};

struct DeclareAgreed {
  struct Bucket {
    std::uint64_t offset = 0;  // bytes in a slot of the arena
    std::uint64_t bytes = 0;
  };
  std::uint32_t group = 0;
  std::vector<Bucket> buckets = {};
  std::uint64_t hash = 0;  // of declaration and buckets; a node that computes another refuses
};

struct Released {  // all nodes have released the group
  std::uint32_t group = 0;
};

struct Launch {
  std::uint32_t link = 0;
  std::uint32_t group = 0;
  model::BucketIndex bucket = 0;
  std::uint64_t generation = 0;
  std::uint64_t offset = 0, bytes = 0;  // in the bucket; they may run on over the buckets behind it
  std::uint64_t last_step = 0;          // that the generation merges; a node whose workers say otherwise refuses it
  std::uint64_t cycle_step = 0;         // the newest flush or plan before the generation, likewise
  std::uint32_t priority = 0;           // see sched::Launch
  model::CodecIndex codec = 0;
  model::AllReduceHalf half = model::AllReduceHalf::kBoth;
};

struct LaunchOrder {
  std::uint64_t first = 0;  // number of the first launch
  std::vector<Launch> launches = {};
};

struct PlanOrder {
  std::uint32_t group = 0;
  std::uint64_t epoch = 0;            // counts plans
  std::uint64_t activation_step = 0;  // the plan's cycles begin here
  model::Plan plan = {};
  std::string reason = {};
};

struct CollectiveStart {
  std::uint64_t number = 0;
  std::uint32_t link = 0;
  std::string name = {};
  std::vector<std::uint64_t> counts = {};  // elements of each rank, in the order of nodes and their local ranks
};

struct CollectiveFailed {  // it cannot run; the job goes on
  std::string name = {};
  Error error = {};
};

struct StoreValue {
  std::uint64_t request = 0;
  std::vector<std::vector<std::byte>> values = {};  // of the keys, in order
};

struct LinkStop {                     // end what runs on the link
  std::uint32_t link = 0, epoch = 0;  // that ends
  Error cause = {};
};

struct LinkReplaced {
  std::uint32_t link = 0;
  std::uint32_t epoch = 0;  // that begins
  std::uint32_t by = 0;     // link whose NIC or servers are used
  std::uint64_t from = 0;   // number of the first launch that runs again
};

struct JobProgress {  // how far all nodes are
  struct Link {
    std::uint32_t epoch = 0;
    std::uint64_t finished_below = 0;
  };
  std::vector<Link> links = {};
};

using ToLeader =
    std::variant<Join, LinksOpen, Declare, CollectiveReady, GradientStatistics, StepTime, StoreSet, StoreGet,
                 LinkFailed, LinkStopped, NodeProgress, Heartbeat, Failure, Leave, Stalled, Waiting, Release>;
using ToNode = std::variant<Joined, Begin, DeclareAgreed, LaunchOrder, PlanOrder, CollectiveStart, CollectiveFailed,
                            StoreValue, LinkStop, LinkReplaced, JobProgress, Heartbeat, Failure, Leave, Stalled,
                            Waiting, TraceOrder, Late, Released>;

}  // namespace wire
}  // namespace deft::daemon
