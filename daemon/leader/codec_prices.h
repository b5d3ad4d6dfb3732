// What codecs cost between the nodes of a job.
//
//   setup.codecs.push_back(price_of(*codec, nodes, {"gloo:eth0", "ps:a:1"}));
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/compress/codec.h"
#include "core/model/codec_cost.h"

namespace deft::daemon {

// The backend of a link by its name: of gloo:eth0 it is gloo.
inline std::string_view backend_of(const std::string& link) { return std::string_view(link).substr(0, link.find(':')); }

// Measures the codec, and adds what sums of `nodes` encodings take. Links are named as in DEFT_LINKS.
model::CodecCost price_of(const compress::Codec& codec, std::size_t nodes, const std::vector<std::string>& links);

}  // namespace deft::daemon
