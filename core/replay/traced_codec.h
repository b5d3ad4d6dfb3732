// Estimates what a codec would cost a traced job, for `deft replay --compression` and `deft optimize --compression`.
//
//   charge_codecs(measured, cores);                             // once
//   price_plan_codecs(measured);                                // once: for policies whose plans choose among several
//   const auto cost = codec_cost("int8", measured, nodes);      // for WhatIf::codec
//
// The job's own codec costs what the trace says. Another codec is timed here, in a process that has a core for itself. The traced daemon
// may be slower than this process, so the time is multiplied by a ratio: of the times of the traced codec, or else of the sums of local
// workers. A trace without codec and with one worker a node gives no ratio. Sums between the nodes, also of parameter servers, have the
// price that the leader gives them (core/compress/codec_costs.h).
#pragma once

#include <cstddef>
#include <string>

#include "core/base/status.h"
#include "core/model/codec_cost.h"
#include "core/replay/measured_job.h"

namespace deft::replay {

// If the workers of a machine keep all of its `cores` busy, encoding takes its time from them. Each worker is taken to compute on one, as
// long as the trace says that it has one.
void charge_codecs(MeasuredJob& measured, std::size_t cores);

// `name` may be "none". kInvalid for an unknown codec.
Result<model::CodecCost> codec_cost(const std::string& name, const MeasuredJob& measured, std::size_t nodes);

// Prices the codecs among which plans choose, of this job or of the job as it would be under a policy that makes plans.
void price_plan_codecs(MeasuredJob& measured);

}  // namespace deft::replay
