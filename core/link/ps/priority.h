// The order of pushes, completions and answers on a ps link. Pure: a link asks which request pushes and completes next, a server
// which answer leaves next.
//
// Priority 0 goes first. All nodes start the same requests in the same order, but a slow node may start an urgent request long
// after another node did, perhaps only when an older request is finished. So the oldest request always moves on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "core/link/ps/wire.h"

namespace deft::link::ps_backend {

// The segments of one request that go through one server.
struct Share {
  std::uint32_t priority = 0;
  std::vector<std::uint32_t> segments = {};  // by number, in the order in which they are pushed
  std::size_t pushed = 0;
  std::size_t answered = 0;
  [[nodiscard]] std::size_t unanswered() const { return pushed - answered; }
  [[nodiscard]] bool done() const { return answered == segments.size(); }
};

// The request in flight (`shares` has the oldest first) that pushes its next segment now: the most urgent one, of equals the
// oldest. Empty if all must wait for answers: kWindow pushes are unanswered, or two more if the oldest request has no push
// among them.
std::optional<std::size_t> next_to_push(std::span<const Share> shares);

struct Ending {
  std::uint32_t priority = 0;
  bool done = false;
};

// The request in flight (oldest first) that may complete now: it is done, and more urgent than all older ones that are not
// done. `apart`: how many were started after the oldest one; beyond kOvertakes of them only the oldest may complete.
std::optional<std::size_t> next_to_finish(std::span<const Ending> rounds, std::uint64_t apart);

// A server's answers to one link. At most kAnswersAhead answers are on their way. Of the answers that wait, the most urgent one
// leaves first; of equals the older answer leaves first.
class AnswerQueue {
 public:
  struct Answer {
    PsHeader header;
    zmq::message_t payload;
  };
  void add(const PsHeader& header, zmq::message_t payload);
  // An answer that may leave now.
  std::optional<Answer> next();
  // An answer, however many are on their way: results from before a failure still count.
  std::optional<Answer> next_of_all();
  // The link has taken `count` answers altogether; false if that cannot be.
  bool taken(std::uint64_t count);
  [[nodiscard]] std::size_t waiting() const { return waiting_.size(); }

 private:
  std::map<std::pair<std::uint32_t, std::uint64_t>, Answer> waiting_;  // by priority and number
  std::uint64_t added_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace deft::link::ps_backend
