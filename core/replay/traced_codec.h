// What a codec would cost a traced job: `deft replay --compression`, `deft optimize --compression`.
//
//   charge_codecs(measured, cores);                             // once
//   const auto cost = codec_cost("int8", measured, nodes);      // for WhatIf::codec
//
// The job's own codec costs what the trace says. Another one costs what it takes here, in a process that has a core for itself, times
// how much longer the traced daemon took than this process does: for its codec, or else for its sums of local workers. With one worker
// a node and no codec the trace tells nothing of that. Then what is added up between the nodes counts as the leader has it
// (core/compress/codec_prices.h), parameter servers included.
#pragma once

#include <cstddef>
#include <string>

#include "core/base/status.h"
#include "core/model/codec_cost.h"
#include "core/replay/measured_job.h"

namespace deft::replay {

// What a byte of gradients takes the link's thread.
inline double thread_us_per_byte(const model::CodecCost& codec) {
  return codec.encode_us_per_byte + codec.decode_us_per_byte;
}

// If the workers of a machine keep all of its `cores` busy, encoding takes its time from them. Each worker is taken to compute on one.
void charge_codecs(MeasuredJob& measured, std::size_t cores);

// `name` may be "none". kInvalid for an unknown codec.
Result<model::CodecCost> codec_cost(const std::string& name, const MeasuredJob& measured, std::size_t nodes);

}  // namespace deft::replay
