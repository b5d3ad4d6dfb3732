// The messages of the unix socket between a worker (libdeft) and its daemon. wire.h encodes and decodes them.
//
// The socket is SOCK_SEQPACKET: one message a packet, at most kMaxMessageBytes, beginning with a MessageHeader. Numbers are in
// the machine's order; both sides run on one machine. Descriptors travel as SCM_RIGHTS of the message that names them.
// Names are UTF-8 without control characters. The daemon takes identity (pid, uid) from the kernel only, and checks every
// length, number and name.
//
//   worker                                   daemon
//   HELLO (version, job, rank, world, ...) ->
//                                         <- WELCOME + 2 descriptors: control segment, daemon's doorbell
//                                            (once all workers of the job have come and all links are open), or ERROR
//   TEXT                                  ->    while it waits for WELCOME: whether the daemon reads it shows whether the daemon hangs
//                                         <- LINK for each link that the worker runs itself, right behind WELCOME
//   STORE_SET, STORE_GET                  ->    the job's key-value store, for the rendezvous of these links; no value: the key goes
//                                         <- STORE_VALUE, when the key exists
//   ERROR                                 ->    such a link failed, and so does the job
//   DECLARE, DECLARE_TENSOR...            ->
//                                         <- DECLARED + arena descriptor (once all ranks declared the same), or ERROR
//                                              A worker gives a group back by RELEASE of the rings (core/shm/record.h), which keep its
//                                              order with what the worker has handed over
//   STAGING_BUFFER (bytes)                ->
//                                         <- STAGING_BUFFER_MADE + descriptor, or ERROR
//   OPERATION (collective on a buffer)    ->    OP_DONE comes over the completion ring
//   FREE_STAGING_BUFFER                   ->
//   STATISTICS                            ->    statistics of the gradients of a step, for the preserver
//   STATUS                                ->  (also without HELLO: `deft status`)
//                                         <- TEXT... (JSON in pieces, the last one with `last`)
//   CHANGE_SETTINGS                       ->  (without HELLO: `deft set`)
//                                         <- TEXT, or ERROR if the job goes on as it was
//   GOODBYE                               ->    clean end; an end-of-file without it is a death
//                                         <- ERROR at any time: the job failed; every later call fails with its text
//                                         <- WAKE at any time: completions have come while the worker slept (core/shm/layout.h)
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace deft::ipc {

inline constexpr std::uint32_t kProtocolMagic = 0x54464544;  // "DEFT"
inline constexpr std::uint32_t kProtocolVersion = 7;
inline constexpr std::size_t kMaxMessageBytes = 65536;
inline constexpr std::uint32_t kMaxWorld = 16000;     // ranks: WELCOME names the node of each, in one message
inline constexpr std::size_t kMaxNameBytes = 1024;    // the name of a tensor, of a collective, or a key of the store
inline constexpr std::size_t kMaxJobNameBytes = 255;  // the name of a job or group, or the leader's address
inline constexpr std::size_t kMaxTermsBytes = 512;    // what callers of a collective must agree on
inline constexpr std::size_t kMaxTextBytes = 4096;

enum class MessageKind : std::uint32_t {
  kHello = 1,
  kWelcome = 2,
  kDeclare = 3,
  kDeclareTensor = 4,
  kDeclared = 5,
  kStagingBuffer = 6,
  kStagingBufferMade = 7,
  kOperation = 8,
  kGoodbye = 9,
  kError = 10,
  kStatus = 11,
  kText = 12,
  kFreeStagingBuffer = 13,
  kLink = 14,
  kStoreSet = 15,
  kStoreGet = 16,
  kStoreValue = 17,
  kStatistics = 18,
  kChangeSettings = 19,
  kTrace = 20,
  kWake = 21,
};

// Every message begins with this. If a message carries texts, they follow its fixed part, up to `bytes`.
struct MessageHeader {
  std::uint32_t magic = kProtocolMagic;
  MessageKind kind{};
  std::uint32_t bytes = 0;  // the size of the whole message
  std::uint32_t version = kProtocolVersion;
};

struct Hello {  // followed by: job, leader (host:port), settings, library version, each as 0-terminated text
  // settings: a line `name=value` for each option of the job that this worker set (policy, links, timeout, ...)
  MessageHeader header;
  std::uint32_t rank = 0, world = 0, local_rank = 0, local_size = 0;
};

struct Welcome {  // followed by world x uint32: the node of each rank
  MessageHeader header;
  std::uint64_t daemon_epoch = 0;
  std::uint32_t node = 0, nodes = 0;
  std::uint32_t world = 0, spin_us = 0;
  std::uint64_t timeout_us = 0;
  std::uint32_t links = 0;         // how many links this worker runs; so many messages LINK follow
  std::uint32_t daemon_links = 0;  // how many links the daemons run
};

struct LinkMessage {  // followed by: backend, interface, address, prefix of store keys
  MessageHeader header;
  std::uint32_t link = 0;      // its number in START
  std::uint32_t encrypts = 0;  // 1: workers encrypt their traffic over it
};

struct StoreItem {  // STORE_SET and STORE_VALUE: followed by the key and the value; STORE_GET: by the key
  MessageHeader header;
  std::uint32_t request = 0;  // the worker's number of a STORE_GET, returned in STORE_VALUE
  std::uint32_t unused = 0;
};

struct Declare {  // followed by the group's name; then `tensors` messages DECLARE_TENSOR
  MessageHeader header;
  std::uint32_t group = 0;  // counts up from 0 in each worker; no number comes twice
  std::uint32_t tensors = 0;
  std::uint32_t slots = 0;
  std::uint32_t reduce_op = 0;  // model::ReduceOp
};

struct DeclareTensor {  // followed by the tensor's name and its own codec (model::TensorSpec::codec)
  MessageHeader header;
  std::uint32_t group = 0;
  std::uint32_t index = 0;
  std::uint32_t forward_position = 0;
  std::uint32_t dtype = 0;
  std::uint32_t dims = 0;
  std::uint32_t unused = 0;
  std::uint64_t shape[8] = {};
};

struct Declared {
  MessageHeader header;
  std::uint32_t group = 0, buckets = 0;
  std::uint64_t arena_bytes = 0;
};

struct StagingBuffer {  // for STAGING_BUFFER, STAGING_BUFFER_MADE, and FREE_STAGING_BUFFER, which gives the buffer back
  MessageHeader header;
  std::uint32_t buffer = 0;  // the worker chooses it; no operation of the worker has the same number
  std::uint32_t unused = 0;
  std::uint64_t bytes = 0;
};

enum class Collective : std::uint32_t { kAllReduce = 1, kBroadcast = 2, kAllGather = 3, kBarrier = 4 };

struct
    Operation {  // followed by the name that matches it across ranks, and by its terms: words that must be equal on all ranks
  MessageHeader header;
  std::uint64_t operation = 0;  // the worker's handle, returned in OP_DONE
  Collective collective{};
  std::uint32_t staging_buffer = 0;
  std::uint64_t offset = 0;    // where the operation's piece begins in the staging buffer, in bytes
  std::uint64_t count = 0;     // the elements of the piece; for all-gather, the elements of this rank's own block
  std::uint64_t capacity = 0;  // all-gather: how many elements the piece can hold
  std::uint32_t dtype = 0;
  std::uint32_t reduce_op = 0;
  std::uint32_t root = 0;  // rank
  std::uint32_t unused = 0;
};

// Statistics of one group in one step; the steps of successive messages grow. deft_statistics in deft.h explains the fields.
struct Statistics {
  MessageHeader header;
  std::uint32_t group = 0;
  std::uint32_t merged_as_sums = 0;
  std::uint64_t step = 0;
  double local_norm = 0;    // squared
  double average_norm = 0;  // squared
  double learning_rate = 0;
  double loss = 0;
  double target = 0;
};

// Names the first value that no worker can have measured; nullptr if all values are possible. The loss of a training that fails is any
// number, or none.
inline const char* impossible_value(const Statistics& statistics) {
  const auto amount = [](double value) { return std::isfinite(value) && value >= 0; };
  if (!amount(statistics.local_norm)) return "the squared norm of the own gradient";
  if (!amount(statistics.average_norm)) return "the squared norm of the average";
  if (!amount(statistics.learning_rate)) return "the learning rate";
  return amount(statistics.target) ? nullptr : "the target of the loss";
}

struct ErrorMessage {  // followed by what, fix, where: 0-terminated texts
  MessageHeader header;
  std::uint32_t error_kind = 0;  // deft::ErrorKind
  std::uint32_t unused = 0;
  std::uint64_t operation = 0;  // 0: the job failed; else only this operation or STAGING_BUFFER failed
};

struct ChangeSettings {  // followed by: job, settings (a line `name=value` each), each as 0-terminated text
  MessageHeader header;
};

enum class TraceAction : std::uint32_t { kDump = 1, kStart = 2, kStop = 3 };

struct TraceRequest {  // followed by: job (empty: the only one), folder (kStart), each as 0-terminated text
  MessageHeader header;
  TraceAction action{};
  std::uint32_t steps = 0;  // of a start: after so many steps the trace ends; 0: when a user stops it
};

struct Wake {
  MessageHeader header;
};

struct Text {  // followed by a piece of text
  MessageHeader header;
  std::uint32_t last = 0;
  std::uint32_t unused = 0;
};

static_assert(sizeof(MessageHeader) == 16 && sizeof(Hello) == 32 && sizeof(Welcome) == 56 && sizeof(Declare) == 32);
static_assert(sizeof(DeclareTensor) == 104 && sizeof(Declared) == 32 && sizeof(StagingBuffer) == 32);
static_assert(sizeof(Operation) == 72 && sizeof(ErrorMessage) == 32 && sizeof(Text) == 24);
static_assert(sizeof(LinkMessage) == 24 && sizeof(StoreItem) == 24 && sizeof(Statistics) == 72 &&
              sizeof(TraceRequest) == 24);
static_assert(std::is_trivially_copyable_v<Operation> && std::is_trivially_copyable_v<Hello>);

}  // namespace deft::ipc
