// What codecs cost between the nodes of a job.
//
//   const auto cost = price_between_nodes(*codec, measure_cost(*codec), nodes, {"gloo:eth0", "ps:a:1"});
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/compress/codec.h"
#include "core/model/codec_cost.h"

namespace deft::compress {

// `alone`: what the codec costs by itself (codec_costs.h); what sums of `nodes` encodings take is added. Links are named as in
// DEFT_LINKS.
model::CodecCost price_between_nodes(const Codec& codec, const model::CodecCost& alone, std::size_t nodes,
                                     const std::vector<std::string>& links);

}  // namespace deft::compress
