// What `deft probe` found, as a table and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/model/link_fit.h"

namespace deft::tools {

struct ProbeNode {
  std::uint32_t rank = 0;
  std::string host;
  std::vector<std::string> links;      // names, as this node resolved them
  std::vector<std::string> addresses;  // of the links
  std::vector<std::string> common;     // what must be the same on all nodes
};

// One link between two nodes, or between all.
struct ProbeRow {
  std::size_t link = 0;
  std::vector<std::uint32_t> nodes;
  std::vector<model::LinkSample> samples;
  model::LinkFit fit;
  std::string error;  // instead of the samples and the fit
};

nlohmann::json to_json(const ProbeNode& node);
Result<ProbeNode> node_from(const std::string& json);
nlohmann::json to_json(const ProbeRow& row);
Result<ProbeRow> row_from(const std::string& json);

nlohmann::json report_json(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows);
std::string report_table(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows);

}  // namespace deft::tools
