// What a codec would cost a traced job: `deft replay --compression`, `deft optimize --compression`.
//
//   charge_codecs(measured, cores);                             // once
//   price_plan_codecs(measured);                                // once: for policies whose plans choose among several
//   const auto cost = codec_cost("int8", measured, nodes);      // for WhatIf::codec
//
// The job's own codec costs what the trace says. Another one costs what it takes here, in a process that has a core for itself, times
// how much longer the traced daemon took than this process does: for its codec, or else for its sums of local workers. A trace with one
// worker a node and no codec does not tell how much longer. Sums between the nodes, also of parameter servers, have the price that the
// leader gives them (core/compress/codec_costs.h).
#pragma once

#include <cstddef>
#include <string>

#include "core/base/status.h"
#include "core/model/codec_cost.h"
#include "core/replay/measured_job.h"

namespace deft::replay {

// If the workers of a machine keep all of its `cores` busy, encoding takes its time from them. Each worker is taken to compute on one.
void charge_codecs(MeasuredJob& measured, std::size_t cores);

// `name` may be "none". kInvalid for an unknown codec.
Result<model::CodecCost> codec_cost(const std::string& name, const MeasuredJob& measured, std::size_t nodes);

// Prices the codecs among which plans choose, of this job or of the job as it would be under a policy that makes plans.
void price_plan_codecs(MeasuredJob& measured);

}  // namespace deft::replay
