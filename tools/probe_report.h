// The results of `deft probe`, as a table and as JSON. The processes of a probe also exchange them as JSON, through a store that whoever
// reaches its port can write. So what is read of it is checked: it can be shown, whoever wrote it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/model/link_costs.h"

namespace deft::tools {

// A node that takes part.
struct ProbeNode {
  std::uint32_t rank = 0;
  std::string host;
  std::vector<std::string> links;      // the names of the links, as this node resolved them
  std::vector<std::string> addresses;  // [link]
  std::vector<std::string> common;     // facts that must be the same on all nodes
  std::vector<int> mtus;               // [link], of the link's NIC, or the least of several; 0: not known
  bool encrypts = false;               // encrypt_gradients
};

// The measurement of one link between two nodes, or between all nodes.
struct ProbeRow {
  std::size_t link = 0;
  std::vector<std::uint32_t> nodes;
  bool at_once = false;  // while all other links were measured, too
  std::vector<model::LinkSample> samples;
  model::LinkFit fit;
  std::vector<double> one_way;  // of two nodes: bytes a us from the first to the second, and back
  std::string error;            // if not empty, there are no samples and no fit
};

nlohmann::json to_json(const ProbeNode& node);
Result<ProbeNode> node_from(const std::string& json);
nlohmann::json to_json(const ProbeRow& row);
// A list of rows about so many nodes and links. kViolation: it is none.
Result<std::vector<ProbeRow>> rows_from(const std::string& json, std::size_t nodes, std::size_t links);

nlohmann::json report_json(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows);
std::string report_table(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows);

}  // namespace deft::tools
