// Which SEND of a node fed which RECV of another one, from their traces.
//
//   SentSegments sent;
//   for (const auto& node : job.nodes) sent.add(node.trace);
//   sent.index();
//   if (const auto* send = sent.that_fed(node, received)) ... send->begin_us, sent.number_of(*send)
//
//   align(samples, records, clock_bounds(node, leader));   // what a node and the leader have sent each other bounds the node's clock
//
// A parameter server's answer is made of what all nodes sent, or the segment's owner. The last of these sends fed it: the server has
// waited for that one.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/replay/clock_alignment.h"
#include "core/trace/segment_trace.h"
#include "core/trace/trace_file.h"

namespace deft::replay {

class SentSegments {
 public:
  // Data that went from one node to another, or to a server.
  struct Way {
    std::uint64_t launch = 0;
    std::uint32_t round = 0;
    std::uint16_t request = 0;
    std::uint8_t part = 0;
    bool is_server = false;
    std::uint32_t to = 0, from = 0;
    auto operator<=>(const Way&) const = default;
  };
  struct Send {
    Way way;
    TimeUs begin_us = 0;
  };

  // What the node has sent. With a `peer`, what it has sent directly to other nodes does not count.
  void add(const trace::NodeTrace& trace, std::optional<std::uint32_t> peer = {});
  // After the last add(), and before what follows.
  void index();
  // Null: it is not known.
  [[nodiscard]] const Send* that_fed(std::uint32_t node, const trace::SegmentTrace& received) const;
  // The send of which a record of `node` itself tells.
  [[nodiscard]] const Send* of(std::uint32_t node, const trace::SegmentTrace& sent) const;
  [[nodiscard]] std::size_t size() const { return sends_.size(); }
  // Below size().
  [[nodiscard]] std::size_t number_of(const Send& send) const {
    return static_cast<std::size_t>(&send - sends_.data());
  }

 private:
  [[nodiscard]] const Send* find(const Way& way) const;

  std::vector<Send> sends_;
};

// What the times of segments between a node and the leader say of the node's clock. Both have their own clocks.
std::vector<ClockBound> clock_bounds(const trace::NodeTrace& node, const trace::NodeTrace& leader);

}  // namespace deft::replay
