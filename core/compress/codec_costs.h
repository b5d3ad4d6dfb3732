// What codecs cost on this machine, for planners.
//
//   const model::CodecCost cost = measure_cost(*codec);     // some milliseconds; remember it
//
// The values are normally distributed, as gradients nearly are. Gradients of a real model have heavier tails, so their error is
// larger; the order of codecs stays.
#pragma once

#include "core/compress/codec.h"
#include "core/model/codec_cost.h"

namespace deft::compress {

// Encodes and decodes a few hundred kilobytes with error feedback, as transfers do. The error is that of a first encoding: what
// feedback sends later counts, because until then it is late. Any thread.
model::CodecCost measure_cost(const Codec& codec);

}  // namespace deft::compress
