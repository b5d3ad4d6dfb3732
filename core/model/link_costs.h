// The measured costs of links: fits them to samples, and reads the file of `deft probe --output FILE`.
//
//   auto costs = read_link_costs("probe.json");     // an error names the file and its mistake
//   const LinkModel* cost = find_cost(*costs, "gloo:eth0");
//
//   auto fit = fit_link(samples);                   // time = latency + bytes / throughput, each with its error
#pragma once

#include <cstdint>
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

// One measured transfer.
struct LinkSample {
  std::uint64_t bytes = 0;
  double us = 0;
};

struct LinkFit {
  double latency_us = 0;
  double latency_error_us = 0;  // one standard error
  double bytes_per_us = 0;
  double bytes_per_us_error = 0;
};

// Fits by least squares of the relative deviation, because disturbances grow with the transfer. kInvalid unless there are at
// least three sizes and the largest takes longer than the smallest. A latency below zero becomes zero.
Result<LinkFit> fit_link(std::span<const LinkSample> samples);

}  // namespace deft::model
