// Turns the messages of a job (messages.h) into the bytes that ControlPlane carries, and back. Only this code knows protobuf.
//
//   plane.send(peer, wire::encode({.job = name, .incarnation = incarnation}, wire::ToLeader(wire::LinksOpen{})));
//
//   const auto header = wire::header_of(bytes);                // who it is for, without a look at the rest
//   auto received = wire::Received::parse(bytes);              // an error: drop it, the sender is unknown
//   if (received->header().version != wire::kControlVersion) ...
//   const auto message = received->to_node(facts);             // an error: `wire` names the field; end the job
//   std::visit(handler, *message);
//
// decode checks every field of a message against the knowledge of its receiver, its `facts`, so that handlers may use a message as it
// is: indices exist, enumerators are known, names are valid UTF-8, sums do not overflow, and a collective that the leader starts
// is one that this node asked for, with the counts that it asked for. An error is a kViolation whose text names the field, as
// "launch_order.launches[2].link: 9, and there are 2 links"; the caller adds the sender with Error::in. Messages that a node and
// the leader on the same machine exchange are not encoded, and so are not checked: both are this daemon.
//
// What remains for the receivers: the order of messages (a launch's number, a step that grows), and what two messages must agree
// on. Thread-safe: nothing here has state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "daemon/wire/messages.h"

namespace deft::daemon::wire {

inline constexpr std::uint32_t kControlVersion = 6;

// Of an encoded message. The largest ones are a DECLARE and its answer, DECLARE_AGREED of kMaxBuckets: 14 bytes for each bucket.
inline constexpr std::size_t kMaxMessageBytes = 16 << 20;

// Limits of the content of messages. decode() refuses more. Texts for people (an error's what, fix and where) are cut instead.
inline constexpr std::uint32_t kMaxLocalSize = 4096;  // ranks of a node
inline constexpr std::size_t kMaxNameBytes = 255;     // of jobs, hosts, groups, settings, versions
// Of tensors, and of collectives, which are named after tensors; of links, of which some name many servers; of a job's token.
inline constexpr std::size_t kMaxLongNameBytes = 4096;
inline constexpr std::size_t kMaxTextBytes = 64 << 10;      // of a text for people, or of a setting's value
inline constexpr std::size_t kMaxLinks = 256;               // of a job
inline constexpr std::uint32_t kMaxGroups = 1024;           // of a job, at a time
inline constexpr std::uint32_t kMaxGroupNumbers = 1 << 16;  // traces have 16 bits for one; a number is never used again
inline constexpr std::size_t kMaxSettings = 256;
inline constexpr std::size_t kMaxStoreKeyBytes = 1024;
inline constexpr std::size_t kMaxStoreKeys = 1 << 16;  // in one STORE_GET
inline constexpr std::size_t kMaxStoreValueBytes = 4 << 20;

struct Header {
  std::string job;
  std::uint64_t incarnation = 0;  // of the job on its leader; 0 before the leader has given one
  std::uint32_t version = kControlVersion;
};

// An error: these bytes are no message. The body, whose messages take more memory than it has bytes, is not read.
Result<Header> header_of(std::span<const std::byte> bytes);

std::string encode(const Header& header, const ToLeader& message);
std::string encode(const Header& header, const ToNode& message);
// An encoded JOINED with this behind it is the one for that node. So a leader of a thousand nodes encodes their list once.
std::string joined_as_node(std::uint32_t node);
// Tells a daemon of another version why its message was not taken. All versions understand it; it is never answered.
std::string encode_refusal(const Header& header, const Error& error);

// The owner of a job. It tells two jobs of one name apart.
struct JobOwner {
  std::uint32_t user = 0;
  std::string token;  // a secret that all workers of the job were given; empty: none was

  // True if workers of `other` belong to this job. Without a token the user must be the same.
  [[nodiscard]] bool admits(const JobOwner& other) const;
};

// The knowledge of a leader when a message of one node comes.
struct LeaderFacts {
  std::uint32_t world = 0;
  std::vector<std::uint32_t> sender_ranks;                  // by local rank; empty: the sender has not joined
  std::vector<std::uint32_t> link_epochs;                   // one for each link; empty before all nodes have joined
  std::uint64_t next_number = 0;                            // of launches and collectives
  std::size_t codecs = 1;                                   // of the job, exact included
  std::function<std::size_t(std::uint32_t group)> buckets;  // of a group; 0: it is not agreed
};

// The knowledge of a node when a message of its leader comes. The references stay valid during one call of to_node.
class NodeFacts {
 public:
  struct Group {
    std::uint64_t slot_bytes = 0;
    std::uint32_t slots = 0;
    std::span<const model::Bucket> buckets;  // empty: not agreed yet
    std::size_t codecs = 1;                  // of the job, exact included
    bool may_go = false;                     // all workers of this node have released it
  };
  struct AskedCollective {              // by the workers of this node
    CollectiveSpec first;               // of the first local rank
    std::vector<std::uint64_t> counts;  // by local rank; shorter: not all have asked yet
    bool started = false;
  };

  virtual ~NodeFacts() = default;
  [[nodiscard]] virtual std::uint32_t world() const = 0;
  [[nodiscard]] virtual std::vector<std::uint32_t> local_ranks() const = 0;
  // The position of the first local rank if the job's ranks are counted node by node.
  [[nodiscard]] virtual std::size_t first_position() const = 0;
  [[nodiscard]] virtual std::vector<std::uint32_t> link_epochs() const = 0;  // one for each link of this node
  [[nodiscard]] virtual std::uint64_t next_number() const = 0;               // of launches and collectives
  [[nodiscard]] virtual std::optional<Group> group(
      std::uint32_t id) const = 0;  // none: not declared by all local workers
  [[nodiscard]] virtual std::optional<AskedCollective> collective(const std::string& name) const = 0;
  // How many keys a STORE_GET asked for that awaits its answer. Nothing: it has ended already.
  [[nodiscard]] virtual std::optional<std::size_t> keys_asked(std::uint64_t request) const = 0;
};

// A message that came, with its header read and its body not yet checked.
class Received {
 public:
  // An error: these bytes are no message. Of another version only the header and a refusal are read.
  static Result<Received> parse(std::span<const std::byte> bytes);
  ~Received();
  Received(Received&&) noexcept;
  Received& operator=(Received&&) noexcept;

  [[nodiscard]] const Header& header() const { return header_; }
  [[nodiscard]] bool is_refusal() const;
  [[nodiscard]] bool is_join() const;
  [[nodiscard]] JobOwner joining_owner() const;  // whose workers want to join; only if is_join()
  [[nodiscard]] Error refusal() const;           // only if is_refusal()

  [[nodiscard]] Result<ToLeader> to_leader(const LeaderFacts& facts) const;
  [[nodiscard]] Result<ToNode> to_node(const NodeFacts& facts) const;

 private:
  struct Body;
  explicit Received(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
  Header header_;
};

}  // namespace deft::daemon::wire
