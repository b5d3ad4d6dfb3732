// What links cost, as `deft probe --output FILE` has measured them.
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

// The list `profile_links` of an object, the measurement of each link between all nodes.
Result<std::vector<LinkModel>> parse_link_costs(std::string_view json);
Result<std::vector<LinkModel>> read_link_costs(const std::string& path);

// Null where the link was not measured.
const LinkModel* find_cost(std::span<const LinkModel> costs, std::string_view link);

}  // namespace deft::model
