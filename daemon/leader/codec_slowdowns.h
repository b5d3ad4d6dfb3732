// How many times as long as a guess the codecs of a job take, on the slowest node.
//
//   CodecSlowdowns slowdowns(nodes, {0, 2e-4, 3e-4});   // [codec]: the guess, in microseconds for a byte of float32
//   slowdowns.take(node, message.codecs);               // each STEP_TIME of each node
//   slowdowns.of(codec).times                           // of the slowest node
//
// All nodes wait for the slowest one, so that one counts. Of a node's newest values of a codec the lower third counts: a disturbance makes
// a value larger and never smaller, and the first ones hold page faults. Encoding and decoding count together, because either alone is
// short.
//
// A codec that no launch of a node has used yet is as much slower there as the least slow of the others: a node that is slow at one codec,
// for want of AVX or of a free core, is slow at all. The least one is taken because a price that is too low corrects itself: the codec is
// used, and then measured. A price that is too high would stay, as nothing would use the codec. For the same reason old values are dropped
// when a codec has not been used for some time. If it is given up again right after that, the next time is twice as long. Pure and not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/sched/recent.h"
#include "daemon/wire/codec_time.h"

namespace deft::daemon {

class CodecSlowdowns {
 public:
  static constexpr std::size_t kKept = 12;                 // values of a node and a codec
  static constexpr std::size_t kFirst = 2;                 // values before they count
  static constexpr std::uint64_t kLeastBytes = 256 << 10;  // of a value
  static constexpr std::uint64_t kPatience = 32;  // messages of a node without the codec, until its values are dropped
  static constexpr std::uint64_t kMostPatience = 1024;           // at last
  static constexpr double kLeastTimes = 0.25, kMostTimes = 100;  // whatever a node says

  struct Slowest {
    double times = 1;
    std::optional<std::size_t> node = {};  // empty: nothing was measured
    bool is_measured = false;              // with this codec, and not concluded from others
  };

  // A codec with the guess 0 is never measured.
  CodecSlowdowns(std::size_t nodes, std::vector<double> guessed_us_per_byte)
      : guessed_(std::move(guessed_us_per_byte)), nodes_(nodes, std::vector<Seen>(guessed_.size())) {}

  // One message of a node. `times` name only codecs of the job.
  void take(std::size_t node, std::span<const wire::CodecTime> times);
  [[nodiscard]] Slowest of(std::size_t codec) const;

 private:
  struct Seen {                                     // of a node and a codec
    sched::Recent<double, kKept> us_per_byte = {};  // the values
    std::uint64_t bytes = 0;                        // of the next value, until they are enough
    double us = 0;                                  // likewise
    std::uint64_t newest = 0;                       // the message that told of it, counted over all nodes
    std::uint64_t patience = kPatience;
  };

  void drop_old();
  [[nodiscard]] std::optional<double> measured(std::size_t node, std::size_t codec) const;
  [[nodiscard]] std::optional<double> concluded(std::size_t node) const;

  std::vector<double> guessed_;           // [codec]
  std::vector<std::vector<Seen>> nodes_;  // [node][codec]
  std::uint64_t messages_ = 0;            // of all nodes
};

}  // namespace deft::daemon
