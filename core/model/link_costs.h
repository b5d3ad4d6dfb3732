// Reads the costs of links that `deft probe --output FILE` has measured.
//
//   auto costs = read_link_costs("probe.json");     // an error names the file and what is wrong in it
//   const LinkModel* cost = find_cost(*costs, "gloo:eth0");
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/model/buckets.h"

namespace deft::model {

// The costs in the list `profile_links` of a JSON object. kInvalid if the text is not of that form.
Result<std::vector<LinkModel>> parse_link_costs(std::string_view json);
// The same from a file.
Result<std::vector<LinkModel>> read_link_costs(const std::string& path);

// The cost of the link called `link`, in `costs`; nullptr if it was not measured.
const LinkModel* find_cost(std::span<const LinkModel> costs, std::string_view link);

}  // namespace deft::model
