// What codecs cost between the nodes of a job.
//
//   setup.codecs.push_back(price_of(*codec, nodes, {"gloo:eth0", "ps:a:1"}));
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/compress/codec.h"
#include "core/model/codec_cost.h"

namespace deft::daemon {

// Measures the codec, and adds what sums of `nodes` encodings take. Links are named as in DEFT_LINKS.
model::CodecCost price_of(const compress::Codec& codec, std::size_t nodes, const std::vector<std::string>& links);

}  // namespace deft::daemon
