// US-Byte's model of a step on one link. The policy usbyte chooses its ranks by it. Layers become ready in backward. Blocks of
// units are sent without interruption. The forward of a layer waits for the whole layer.
//
//   const UsByteModel model = usbyte_model(profile, partition_bytes, credit_bytes);
//   const auto ranks = raised_ranks(model);
//
// Pure; times are in microseconds.
#pragma once

#include <cstdint>
#include <vector>

#include "core/model/profile.h"

namespace deft::sched {

struct UsByteModel {
  struct Layer {
    double ready_us;  // from the beginning of backward
    double forward_us;
    std::uint64_t bytes;
  };
  std::vector<Layer> layers;  // in forward order
  double latency_us = 0;
  double bytes_per_us = 1;
  std::uint64_t unit_bytes = 1;
  // ByteScheduler's parts and credit.
  std::uint64_t part_bytes = 1;
  std::uint64_t credit_bytes = 0;

  struct Result {
    double step_us;  // the time from the beginning of backward to the end of the next forward
    std::vector<double> first_sent_us;
  };
  // Runs a step in which blocks go in the order of `ranks`, which has a rank for each layer.
  [[nodiscard]] Result blocks(const std::vector<std::uint32_t>& ranks) const;
  // The time of a step in which equal parts go in forward order with a credit, as ByteScheduler sends them.
  [[nodiscard]] double parts_us() const;

  [[nodiscard]] double cost_us(std::uint64_t bytes) const {
    return latency_us + static_cast<double>(bytes) / bytes_per_us;
  }
};

// The model for `profile`, with all its links taken as one link. `partition_bytes` and `credit_bytes` have the values of Setup.
UsByteModel usbyte_model(const model::Profile& profile, std::uint64_t partition_bytes, std::uint64_t credit_bytes);

// The ranks with which US-Byte ends, after it has raised priorities.
std::vector<std::uint32_t> raised_ranks(const UsByteModel& model);

}  // namespace deft::sched
