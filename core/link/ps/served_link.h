// A server's side of one link of one job: its nodes, the segments that are being added, and how it fails.
//
// The server adds the nodes' parts of a segment in the order of the nodes, each as soon as it is here, while others still
// send. 16-bit types wait for all parts, because they are rounded once. When all nodes have pushed a segment, every node gets
// the result: at once, or, if the node has not taken the results before it, when it is the most urgent result that waits.
// Encoded segments wait for all parts: they are decoded, added and encoded at once, in the order of the nodes (wire.h). What every
// node adds for itself waits, too, and is passed on.
// It does no I/O. It checks every message of a node: a node that breaks the protocol fails this link and no other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/compress/encoded_sum.h"
#include "core/link/ps/priority.h"
#include "core/link/ps/wire.h"

namespace deft::link::ps_backend {

using compress::EncodedSum;

class ServedLink {
 public:
  using Send = std::function<void(std::uint32_t node, const PsHeader& header, zmq::message_t& payload)>;
  using Recipe = std::span<const std::byte>;

  ServedLink(std::uint32_t nodes, Send send);

  // `node` has come. An error refuses it, and harms nobody else.
  Result<void> join(std::uint32_t node, std::uint32_t nodes);
  // `node` is gone: the others wait in vain.
  void leave(std::uint32_t node);
  void push(std::uint32_t node, const PsHeader& header, zmq::message_t payload, Recipe recipe = {});
  // `node` has taken `count` results altogether, as every push says too.
  void taken(std::uint32_t node, std::uint64_t count);

  [[nodiscard]] bool failed() const { return failed_.has_value(); }
  [[nodiscard]] bool empty() const { return present_ == 0; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // that were pushed so far

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // round, segment
  struct Slot {
    PsHeader shape;
    std::uint32_t first_node = 0;   // that gave the shape
    std::vector<std::byte> recipe;  // of the first node; empty: the segment is not encoded
    std::optional<EncodedSum> sum;  // likewise
    std::vector<zmq::message_t> parts;
    std::vector<bool> came;
    std::uint32_t missing = 0;
    std::uint32_t summed = 0;  // nodes 0 .. summed - 1 are in parts[0]
  };
  struct Member {
    bool here = false;
    std::map<std::uint64_t, std::uint32_t> last;  // segment that it pushed of each of the last rounds
    AnswerQueue outbox;
  };

  [[nodiscard]] std::string fault(std::uint32_t node, const PsHeader& header, std::size_t payload) const;
  [[nodiscard]] static bool is_alike(const Slot& slot, const PsHeader& header, Recipe recipe);
  Slot* slot_for(std::uint32_t node, const PsHeader& header, Recipe recipe);
  static void sum_what_is_here(Slot& slot);
  void complete(Slot& slot);
  void complete_encoded(Slot& slot);
  void add_result(std::uint32_t node, const Slot& slot, zmq::message_t payload);
  void answer(std::uint32_t node);
  [[nodiscard]] bool is_here(std::uint32_t node) const;
  static void note(Member& member, const Key& key);
  void refuse(std::uint32_t node, const std::string& wrong);
  void fail_all(const Error& error);
  void report_presence();

  const std::uint32_t nodes_;
  Send send_;
  std::map<std::uint32_t, Member>
      members_;  // nodes that have come; a stranger's link of many nodes takes no memory for the others
  std::uint32_t present_ = 0;
  bool started_ = false;
  std::optional<Error> failed_;
  std::map<Key, Slot> slots_;
  std::uint64_t bytes_ = 0;
};

// The message that tells a node that the link has failed.
PsHeader failed_header(const Error& error);

}  // namespace deft::link::ps_backend
