// Measures what codecs cost on this machine and between the nodes of a job. Planners use it.
//
//   const model::CodecCost alone = measure_cost(*codec);     // some milliseconds; remember it
//   const auto cost = price_between_nodes(*codec, alone, nodes, {"gloo:eth0", "ps:a:1"});
//   const double us = stages_us_per_byte(*codec, alone, nodes);   // beside it: what the stages of real transfers take
//
// The values are normally distributed, as gradients nearly are. Gradients of a real model have heavier tails, so their error is
// larger; the order of codecs stays.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/compress/codec.h"
#include "core/model/codec_cost.h"

namespace deft::compress {

// Encodes and decodes a few hundred kilobytes with error feedback, as transfers do. The error is that of a first encoding: what
// feedback sends later counts, because until then it is late. Any thread.
model::CodecCost measure_cost(const Codec& codec);

// `alone`: what measure_cost() gave; what sums of `nodes` encodings take is added. Links are named as in DEFT_LINKS.
model::CodecCost price_between_nodes(const Codec& codec, const model::CodecCost& alone, std::size_t nodes,
                                     const std::vector<std::string>& links);

// What the stages `encode` and `decode` of a node's transfers (trace::TransferStage) take for a byte of float32, if a codec takes as long
// as in `alone`. The work of a block's owner is no part of them: it is done between the halves of the link's stage. 0: they do not tell,
// because a part of the encoding is done within the link's stage (PowerSGD).
double stages_us_per_byte(const Codec& codec, const model::CodecCost& alone, std::size_t nodes);

}  // namespace deft::compress
