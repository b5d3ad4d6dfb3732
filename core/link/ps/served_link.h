// A server's side of one link of one job: who takes part, the segments that are being summed, and how it fails.
//
// A segment is summed in the order of the nodes as soon as the next one in that order is here, while others still send;
// 16-bit types wait for all, because they are rounded once. When all nodes have pushed it, everyone gets the result: at once,
// or where a link has not taken the ones before it, when it is the most urgent of those that wait.
// It does no I/O. What a link sends is checked: a link that breaks the protocol fails its link and no other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/link/ps/priority.h"
#include "core/link/ps/wire.h"

namespace deft::link::ps_backend {

class ServedLink {
 public:
  using Send = std::function<void(std::uint32_t node, const Header& header, zmq::message_t& payload)>;

  ServedLink(std::uint32_t nodes, Send send);

  // The link of `node` came; an error refuses it, and harms nobody else.
  Result<void> join(std::uint32_t node, std::uint32_t nodes);
  // It is gone: what the others wait for cannot come any more.
  void leave(std::uint32_t node);
  void push(std::uint32_t node, const Header& header, zmq::message_t payload);
  // It has got so many results altogether, as every push says too.
  void taken(std::uint32_t node, std::uint64_t count);

  [[nodiscard]] bool empty() const { return present_ == 0; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // that were pushed so far

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // round, segment
  struct Slot {
    Header shape;
    std::uint32_t first_node = 0;  // that gave the shape
    std::vector<zmq::message_t> parts;
    std::vector<bool> came;
    std::uint32_t missing = 0;
    std::uint32_t summed = 0;  // nodes 0 .. summed - 1 are in parts[0]
  };
  struct Member {
    bool here = false;
    std::map<std::uint64_t, std::uint32_t> last;  // segment that it pushed of each of the last rounds
    Outbox outbox;
  };

  [[nodiscard]] std::string fault(std::uint32_t node, const Header& header, std::size_t payload) const;
  [[nodiscard]] static bool same_shape(const Header& a, const Header& b);
  Slot& slot_for(std::uint32_t node, const Header& header);
  static void sum_what_is_here(Slot& slot);
  void complete(Slot& slot);
  void answer(std::uint32_t node);
  static void note(Member& member, const Key& key);
  void fail_all(const Error& error);
  void tell_present();

  const std::uint32_t nodes_;
  Send send_;
  std::vector<Member> members_;
  std::uint32_t present_ = 0;
  bool started_ = false;
  std::optional<Error> failed_;
  std::map<Key, Slot> slots_;
  std::uint64_t bytes_ = 0;
};

// The message that tells a link that its link is of no use.
Header failed_header(const Error& error);

}  // namespace deft::link::ps_backend
