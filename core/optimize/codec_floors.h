// How many small tensors a codec may leave exact (the option compression_min_bytes): which sizes make a difference in a traced job.
//
//   for (const std::uint64_t floor : codec_floors(measured, above)) ...   // each leaves more tensors exact than the one before
//   encoded_tensors(measured, a) == encoded_tensors(measured, b)          // the same tensors are encoded
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/replay/measured_job.h"

namespace deft::optimize {

// The traced job's own. Empty if the trace does not tell what a codec may encode, so that nobody knows what another floor would change.
std::optional<std::uint64_t> own_codec_floor(const replay::MeasuredJob& measured);

// How many tensors codecs may encode that are not smaller than this. 0 if the trace does not tell.
std::size_t encoded_tensors(const replay::MeasuredJob& measured, std::uint64_t floor_bytes);

// Floors to try, all of which leave more tensors exact than `above` and the job's own do. Empty if the trace does not tell.
std::vector<std::uint64_t> codec_floors(const replay::MeasuredJob& measured, std::uint64_t above);

}  // namespace deft::optimize
