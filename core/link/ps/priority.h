// Who goes first on a ps link. Pure: the link asks what to push and what to finish, a server what to answer.
//
// 0 is the most urgent. All nodes start the same operations in the same order, but one may start an urgent operation long after
// another one did, perhaps only when an older one is finished. So priority never keeps the oldest operation from moving.
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

// The segments of one operation that go through one server.
struct Share {
  std::uint32_t priority = 0;
  std::vector<std::uint32_t> segments = {};  // by number, in the order in which they are pushed
  std::size_t pushed = 0;
  std::size_t answered = 0;
  [[nodiscard]] std::size_t unanswered() const { return pushed - answered; }
  [[nodiscard]] bool done() const { return answered == segments.size(); }
};

// Which of the operations under way, oldest first, pushes its next segment now: the most urgent one, of equals the oldest.
// Nothing where all must wait for answers: kWindow pushes are under way, or two more where the oldest had none of them.
std::optional<std::size_t> next_to_push(std::span<const Share> shares);

struct Ending {
  std::uint32_t priority = 0;
  bool done = false;
};

// Which of the operations under way, oldest first, may be reported as finished now: one that is done and more urgent than all
// older ones that are not. `apart`: how many were started after the oldest one; beyond kOvertakes of them only that may end.
std::optional<std::size_t> next_to_finish(std::span<const Ending> rounds, std::uint64_t apart);

// What a server has to say to one link: kAnswersAhead answers are on their way at most, and of those that wait the most urgent
// one leaves first, of equals the one that came first.
class Outbox {
 public:
  struct Answer {
    Header header;
    zmq::message_t payload;
  };
  void add(const Header& header, zmq::message_t payload);
  // One that may leave now.
  std::optional<Answer> next();
  // One whatever is on its way: what was finished before a failure still counts.
  std::optional<Answer> next_of_all();
  // The link has got so many altogether; false if that cannot be.
  bool taken(std::uint64_t count);

 private:
  std::map<std::pair<std::uint32_t, std::uint64_t>, Answer> waiting_;  // by priority and number
  std::uint64_t added_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace deft::link::ps_backend
