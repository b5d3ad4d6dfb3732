// Words for an explanation that `deft explain` and `deft report` share: its causes as JSON, and the names of a step's shares.
//
//   causes_json(explanation)                                  // objects: cause, where, what, share, gain_us, options, error_us
//   for (const auto& [share, name] : kShareNames) show(name, explanation.shares.*share);
#pragma once

#include <array>
#include <nlohmann/json.hpp>

#include "core/replay/explain.h"

namespace deft::tools {

struct ShareName {
  double replay::TimeShares::*share;
  const char* name;
};
inline constexpr std::array kShareNames = {ShareName{&replay::TimeShares::compute_us, "compute"},
                                           ShareName{&replay::TimeShares::slow_worker_us, "waiting for a slow worker"},
                                           ShareName{&replay::TimeShares::communication_us, "exposed communication"},
                                           ShareName{&replay::TimeShares::queueing_us, "queueing"},
                                           ShareName{&replay::TimeShares::codec_us, "encoding and decoding"},
                                           ShareName{&replay::TimeShares::daemon_us, "the daemon"}};

inline nlohmann::json causes_json(const replay::Explanation& explanation) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& cause : explanation.causes)
    list.push_back({{"cause", cause.cause},
                    {"where", cause.where},
                    {"what", cause.what},
                    {"share", cause.share},
                    {"gain_us", cause.gain_us},
                    {"options", cause.options},
                    {"error_us", cause.error_us}});
  return list;
}

}  // namespace deft::tools
