// The codecs of a job on its leader, with what they cost the slowest node.
//
//   JobCodecs codecs(settings, nodes);
//   setup.codecs = codecs.priced(link_names);        // measured here at the first call
//   if (codecs.take(node, message.codecs))           // STEP_TIME
//     scheduler.codecs_measured(codecs.prices());
//
// The first prices are a guess: the leader encodes a few hundred kilobytes while nothing else runs (core/compress/codec_costs.h). All nodes
// then tell what their transfers really take (daemon/node/codec_times.h), and CodecSlowdowns says how the guess is corrected. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/codec_cost.h"
#include "daemon/base/settings.h"
#include "daemon/leader/codec_slowdowns.h"
#include "daemon/wire/codec_time.h"

namespace deft::daemon {

class JobCodecs {
 public:
  // `settings` outlives this object.
  JobCodecs(const JobSettings& settings, std::size_t nodes) : settings_(settings), nodes_(nodes) {}

  [[nodiscard]] std::size_t nodes() const { return nodes_; }

  // By the index that a launch has; the first is exact. The job's links have these names.
  const std::vector<model::CodecCost>& priced(const std::vector<std::string>& links);
  // The same once they are priced; empty before that.
  [[nodiscard]] const std::vector<model::CodecCost>& prices() const { return prices_; }

  // What a node tells. True: a price has changed.
  bool take(std::size_t node, std::span<const wire::CodecTime> times);

  // A list of the codecs that can be chosen: times for a megabyte of float32, and the node that they are from. Empty: no codec is priced.
  [[nodiscard]] nlohmann::json status() const;

 private:
  const JobSettings& settings_;
  const std::size_t nodes_;
  std::vector<model::CodecCost> guesses_, prices_;  // empty: not measured yet
  std::optional<CodecSlowdowns> slowdowns_;         // likewise
};

}  // namespace deft::daemon
