// US-Byte's own model of a step on one link, by which it plans: layers become ready in backward, blocks of units are sent
// without interruption, forward of a layer waits for all of it.
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
  std::uint64_t part_bytes = 1;  // of ByteScheduler, as its credit
  std::uint64_t credit_bytes = 0;

  struct Result {
    double step_us;  // from the beginning of backward to the end of the next forward
    std::vector<double> first_sent_us;
  };
  // Blocks in the order of `ranks`, one for each layer.
  [[nodiscard]] Result blocks(const std::vector<std::uint32_t>& ranks) const;
  // Equal parts in forward order with a credit, as ByteScheduler sends them.
  [[nodiscard]] double parts_us() const;

  [[nodiscard]] double cost_us(std::uint64_t bytes) const {
    return latency_us + static_cast<double>(bytes) / bytes_per_us;
  }
};

// All links of the profile taken as one. `partition_bytes` and `credit_bytes` as Setup has them.
UsByteModel usbyte_model(const model::Profile& profile, std::uint64_t partition_bytes, std::uint64_t credit_bytes);

// The ranks that US-Byte's raising of priorities ends with.
std::vector<std::uint32_t> raised_ranks(const UsByteModel& model);

}  // namespace deft::sched
