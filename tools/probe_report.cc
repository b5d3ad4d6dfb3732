#include "tools/probe_report.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>

#include "core/base/text.h"
#include "tools/findings.h"
#include "tools/probe_findings.h"

namespace deft::tools {
namespace {

using nlohmann::json;

template <typename... Values>
std::string number(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string pad(std::string text, std::size_t width) {
  return text += std::string(width - std::min(width, text.size()), ' ');
}

// Latency, throughput and what else was measured; or the error.
std::string measured_text(const ProbeRow& row) {
  if (!row.error.empty()) return row.error;
  if (row.at_once) return pad("", 18) + pad(number("%.1f", row.fit.bytes_per_us), 16) + "  with all links at once";
  const std::string latency = number("%.0f +- %.0f", row.fit.latency_us, row.fit.latency_error_us);
  const std::string rate = number("%.1f +- %.1f", row.fit.bytes_per_us, row.fit.bytes_per_us_error);
  if (row.one_way.size() != 2) return pad(latency, 16) + "  " + rate;
  return pad(latency, 16) + "  " + pad(rate, 16) + "  " + number("%.1f, %.1f", row.one_way[0], row.one_way[1]);
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

constexpr std::size_t kMaxTextBytes = 4096;
constexpr std::uint64_t kMaxSampleBytes = 64U << 20;

// Throws if it is no whole number below `limit`.
std::uint64_t natural(const json& from, std::uint64_t limit) {
  if (!from.is_number_unsigned() || from.get<std::uint64_t>() >= limit)
    throw std::invalid_argument("a number is out of range");
  return from.get<std::uint64_t>();
}

template <typename T>
std::vector<T> naturals(const json& from, std::uint64_t limit) {
  std::vector<T> numbers;
  for (const json& one : from) numbers.push_back(static_cast<T>(natural(one, limit)));
  return numbers;
}

std::string text_of(const json& from) { return readable(from.get<std::string>(), kMaxTextBytes); }

std::vector<std::string> texts_of(const json& from) {
  std::vector<std::string> texts;
  for (const json& one : from) texts.push_back(text_of(one));
  return texts;
}

ProbeNode node_of(const json& from) {
  ProbeNode node{static_cast<std::uint32_t>(natural(from.at("rank"), 1U << 31)),
                 text_of(from.at("host")),
                 texts_of(from.at("links")),
                 texts_of(from.at("addresses")),
                 texts_of(from.at("common")),
                 naturals<int>(from.at("mtus"), 1U << 31),
                 from.at("encrypts")};
  for (const std::size_t count : {node.addresses.size(), node.common.size(), node.mtus.size()})
    if (count != node.links.size()) throw std::invalid_argument("its lists of links differ");
  return node;
}

ProbeRow row_of(const json& from, std::size_t nodes, std::size_t links) {
  ProbeRow row;
  row.link = natural(from.at("link"), links);
  row.nodes = naturals<std::uint32_t>(from.at("nodes"), nodes);
  if (row.nodes.empty()) throw std::invalid_argument("a row without nodes");
  row.at_once = from.at("at_once");
  row.error = text_of(from.value("error", json("")));
  if (!row.error.empty()) return row;
  row.fit = {from.at("latency_us"), from.at("latency_error_us"), from.at("bytes_per_us"),
             from.at("bytes_per_us_error")};
  row.one_way = from.value("one_way_bytes_per_us", std::vector<double>());
  if (!row.one_way.empty() && (row.one_way.size() != 2 || row.nodes.size() != 2))
    throw std::invalid_argument("one way is between two nodes");
  for (const auto& sample : from.at("samples"))
    row.samples.push_back({natural(sample.at("bytes"), kMaxSampleBytes), sample.at("us")});
  if (row.samples.empty()) throw std::invalid_argument("a row without samples");
  return row;
}

template <typename T, typename Read>
Result<T> parsed(const std::string& text, const Read& read) {
  try {
    return read(json::parse(text));
  } catch (const std::exception& error) {
    return fail(ErrorKind::kViolation,
                std::string("another process of deft probe said what cannot be read: ") + error.what(),
                "install the same version of Deft on all nodes");
  }
}

}  // namespace

json to_json(const ProbeNode& node) {
  return {{"rank", node.rank},     {"host", node.host}, {"links", node.links},      {"addresses", node.addresses},
          {"common", node.common}, {"mtus", node.mtus}, {"encrypts", node.encrypts}};
}

Result<ProbeNode> node_from(const std::string& text) { return parsed<ProbeNode>(text, node_of); }

json to_json(const ProbeRow& row) {
  json out{{"link", row.link}, {"nodes", row.nodes}, {"at_once", row.at_once}};
  if (!row.error.empty()) {
    out["error"] = row.error;
    return out;
  }
  out["latency_us"] = row.fit.latency_us;
  out["latency_error_us"] = row.fit.latency_error_us;
  out["bytes_per_us"] = row.fit.bytes_per_us;
  out["bytes_per_us_error"] = row.fit.bytes_per_us_error;
  if (!row.one_way.empty()) out["one_way_bytes_per_us"] = row.one_way;
  out["samples"] = json::array();
  for (const auto& sample : row.samples) out["samples"].push_back({{"bytes", sample.bytes}, {"us", sample.us}});
  return out;
}

Result<std::vector<ProbeRow>> rows_from(const std::string& text, std::size_t nodes, std::size_t links) {
  return parsed<std::vector<ProbeRow>>(text, [nodes, links](const json& from) {
    std::vector<ProbeRow> rows;
    for (const auto& one : from) rows.push_back(row_of(one, nodes, links));
    return rows;
  });
}

// `profile_links` stands in the form of a profile's links, for deft simulate: measured between all nodes.
json report_json(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows) {
  json out{{"nodes", json::array()}, {"measured", json::array()}, {"profile_links", json::array()}};
  out["findings"] = to_json(probe_findings(nodes, rows));
  for (const auto& node : nodes) {
    json entry = to_json(node);
    entry.erase("common");
    out["nodes"].push_back(entry);
  }
  for (const auto& row : rows) {
    json entry = to_json(row);
    entry["link"] = link_name(nodes, row);
    out["measured"].push_back(entry);
    if (row.nodes.size() == nodes.size() && row.error.empty() && !row.at_once)
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
  if (!nodes.empty() && nodes.front().encrypts) out += "what the links send is encrypted (encrypt_gradients)\n";
  out += "\n" + pad("link", wide) + "  nodes    latency, us       throughput, MB/s  one way, and back\n";
  for (const auto& row : rows) {
    out += pad(link_name(nodes, row), wide) + "  " + pad(between(nodes, row), 7) + "  " + measured_text(row) + "\n";
  }
  const auto findings = probe_findings(nodes, rows);
  return out + (findings.empty() ? "" : "\n") + to_text(findings);
}

}  // namespace deft::tools
