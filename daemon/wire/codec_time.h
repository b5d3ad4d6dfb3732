// The part of STEP_TIME that tells what codecs take a node.
#pragma once

#include <cstdint>

#include "core/model/codec_cost.h"

namespace deft::daemon::wire {

// Encoding and decoding with one codec of the job, since the node's last message.
struct CodecTime {
  model::CodecIndex codec = 0;
  std::uint64_t bytes = 0;  // of the gradients, as float32
  double encode_us = 0, decode_us = 0;
};

}  // namespace deft::daemon::wire
