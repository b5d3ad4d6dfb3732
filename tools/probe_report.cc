#include "tools/probe_report.h"

#include <algorithm>
#include <cstdio>

namespace deft::tools {
namespace {

using nlohmann::json;

std::string number(const char* format, double value, double error) {
  char text[64];
  std::snprintf(text, sizeof text, format, value, error);
  return text;
}

// The names of the link on these nodes; one where they agree.
std::string link_name(const std::vector<ProbeNode>& nodes, const ProbeRow& row) {
  std::string text;
  for (const std::uint32_t node : row.nodes) {
    const std::string& name = nodes[node].links[row.link];
    if (text.find(name) == std::string::npos) text += (text.empty() ? "" : " / ") + name;
  }
  return text;
}

std::string between(const std::vector<ProbeNode>& nodes, const ProbeRow& row) {
  if (row.nodes.size() == nodes.size() && nodes.size() > 2) return "all";
  return std::to_string(row.nodes.front()) + " - " + std::to_string(row.nodes.back());
}

template <typename T>
Result<T> parsed(const std::string& text, T (*read)(const json&)) {
  try {
    return read(json::parse(text));
  } catch (const json::exception& error) {
    return fail(ErrorKind::kViolation,
                std::string("another process of deft probe said what cannot be read: ") + error.what(),
                "install the same version of Deft on all nodes");
  }
}

}  // namespace

json to_json(const ProbeNode& node) {
  return {{"rank", node.rank},           {"host", node.host},     {"links", node.links},
          {"addresses", node.addresses}, {"common", node.common}, {"encrypts", node.encrypts}};
}

Result<ProbeNode> node_from(const std::string& text) {
  return parsed<ProbeNode>(text, [](const json& from) {
    return ProbeNode{from.at("rank"),      from.at("host"),   from.at("links"),
                     from.at("addresses"), from.at("common"), from.at("encrypts")};
  });
}

json to_json(const ProbeRow& row) {
  json out{{"link", row.link}, {"nodes", row.nodes}};
  if (!row.error.empty()) {
    out["error"] = row.error;
    return out;
  }
  out["latency_us"] = row.fit.latency_us;
  out["latency_error_us"] = row.fit.latency_error_us;
  out["bytes_per_us"] = row.fit.bytes_per_us;
  out["bytes_per_us_error"] = row.fit.bytes_per_us_error;
  out["samples"] = json::array();
  for (const auto& sample : row.samples) out["samples"].push_back({{"bytes", sample.bytes}, {"us", sample.us}});
  return out;
}

Result<ProbeRow> row_from(const std::string& text) {
  return parsed<ProbeRow>(text, [](const json& from) {
    ProbeRow row;
    row.link = from.at("link");
    row.nodes = from.at("nodes").get<std::vector<std::uint32_t>>();
    row.error = from.value("error", "");
    if (!row.error.empty()) return row;
    row.fit = {from.at("latency_us"), from.at("latency_error_us"), from.at("bytes_per_us"),
               from.at("bytes_per_us_error")};
    for (const auto& sample : from.at("samples")) row.samples.push_back({sample.at("bytes"), sample.at("us")});
    return row;
  });
}

// `profile_links` stands in the form of a profile's links, for deft simulate: measured between all nodes.
json report_json(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows) {
  json out{{"nodes", json::array()}, {"measured", json::array()}, {"profile_links", json::array()}};
  for (const auto& node : nodes) {
    json entry = to_json(node);
    entry.erase("common");
    out["nodes"].push_back(entry);
  }
  for (const auto& row : rows) {
    json entry = to_json(row);
    entry["link"] = link_name(nodes, row);
    out["measured"].push_back(entry);
    if (row.nodes.size() == nodes.size() && row.error.empty())
      out["profile_links"].push_back({{"name", nodes.front().links[row.link]},
                                      {"latency_us", row.fit.latency_us},
                                      {"bytes_per_us", row.fit.bytes_per_us}});
  }
  return out;
}

std::string report_table(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows) {
  std::string out;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    out += "node " + std::to_string(i) + ": " + nodes[i].host + ", rank " + std::to_string(nodes[i].rank);
    for (std::size_t l = 0; l < nodes[i].links.size(); ++l)
      out += ", " + nodes[i].links[l] + (nodes[i].addresses[l].empty() ? "" : " (" + nodes[i].addresses[l] + ")");
    out += "\n";
  }
  std::size_t wide = 4;
  for (const auto& row : rows) wide = std::max(wide, link_name(nodes, row).size());
  const auto pad = [](std::string text, std::size_t width) {
    return text += std::string(width - std::min(width, text.size()), ' ');
  };
  if (!nodes.empty() && nodes.front().encrypts) out += "what the links send is encrypted (encrypt_gradients)\n";
  out += "\n" + pad("link", wide) + "  nodes    latency, us       throughput, MB/s\n";
  for (const auto& row : rows) {
    out += pad(link_name(nodes, row), wide) + "  " + pad(between(nodes, row), 7) + "  ";
    if (row.error.empty()) {
      out += pad(number("%.0f +- %.0f", row.fit.latency_us, row.fit.latency_error_us), 16) + "  ";
      out += number("%.1f +- %.1f", row.fit.bytes_per_us, row.fit.bytes_per_us_error);
    } else {
      out += row.error;
    }
    out += "\n";
  }
  return out;
}

}  // namespace deft::tools
