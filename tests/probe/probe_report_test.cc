// What another process of deft probe says, or somebody else who reaches its store: it is refused, or it can be shown.
#include "tools/probe_report.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/base/random_cases.h"

namespace deft::tools {
namespace {

ProbeNode node() {
  ProbeNode made;
  made.host = "far";
  made.links = {"gloo:eth0", "gloo:eth1"};
  made.addresses = {"10.0.0.1", "10.0.1.1"};
  made.common = {"gloo", "gloo"};
  made.mtus = {1500, 9000};
  return made;
}

ProbeRow row() {
  ProbeRow made;
  made.link = 1;
  made.nodes = {0, 1};
  made.samples = {{4, 20.5}, {1 << 20, 900}};
  made.fit = {20, 1, 1200, 3};
  made.one_way = {1200, 1100};
  return made;
}

std::string list_of(const nlohmann::json& one) { return nlohmann::json::array({one}).dump(); }

TEST(ProbeReport, WhatAProcessSaysIsRead) {
  const auto read = node_from(to_json(node()).dump());
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->mtus, node().mtus);
  const auto rows = rows_from(list_of(to_json(row())), 2, 2);
  ASSERT_TRUE(rows) << rows.error().message();
  EXPECT_EQ(rows->front().samples.back().bytes, 1U << 20);
  auto failed = row();
  failed.error = "reset\x1b[2J";
  EXPECT_EQ(rows_from(list_of(to_json(failed)), 2, 2)->front().error, "reset\\x1b[2J");
}

TEST(ProbeReport, RowsOfNodesAndLinksThatThereAreNotAreRefused) {
  const std::pair<const char*, const char*> lies[] = {{"link", "2"},
                                                      {"link", "-1"},
                                                      {"link", "1e300"},
                                                      {"link", "\"1\""},
                                                      {"nodes", "[0, 2]"},
                                                      {"nodes", "[]"},
                                                      {"nodes", "1"},
                                                      {"at_once", "1"},
                                                      {"samples", "[]"},
                                                      {"samples", "7"},
                                                      {"samples", "[{\"bytes\": 1e9, \"us\": 1}]"},
                                                      {"latency_us", "{}"},
                                                      {"error", "3"},
                                                      {"samples", "[{\"bytes\": 1125899906842624, \"us\": 1}]"},
                                                      {"nodes", "[0]"},
                                                      {"nodes", "[0, 1, 1]"},
                                                      {"one_way_bytes_per_us", "[1]"},
                                                      {"one_way_bytes_per_us", "true"}};
  for (const auto& [key, value] : lies) {
    nlohmann::json spoiled = to_json(row());
    spoiled[key] = nlohmann::json::parse(value);
    const auto rows = rows_from(list_of(spoiled), 2, 2);
    EXPECT_TRUE(!rows && rows.error().kind == ErrorKind::kViolation) << spoiled.dump();
  }
  for (const char* list : {"links", "addresses", "common", "mtus"}) {
    nlohmann::json spoiled = to_json(node());
    spoiled[list].erase(0);
    EXPECT_FALSE(node_from(spoiled.dump())) << list;
  }
  for (const char* text : {"", "{", "null", "[[]]", "[{}]", "{\"rank\":0}", "\xff"}) {
    EXPECT_FALSE(node_from(text)) << text;
    EXPECT_FALSE(text != std::string("null") && rows_from(text, 2, 2)) << text;
  }
}

// Any part is replaced by any other, or by what stands at the edge of what can be written.
void spoil(nlohmann::json& value, std::mt19937& dice) {
  const nlohmann::json others[] = {nullptr, true, 0,  1,      2,  -1,    18446744073709551615U,
                                   1e300,   -0.5, "", "\x1b", {}, {{0}}, nlohmann::json::object()};
  if (dice() % 4 == 0 || !value.is_structured() || value.empty()) {
    value = others[dice() % std::size(others)];
    return;
  }
  auto part = value.begin();
  std::advance(part, static_cast<std::ptrdiff_t>(dice() % value.size()));
  if (dice() % 5 == 0)
    value.erase(part);
  else
    spoil(*part, dice);
}

TEST(ProbeReport, WhateverIsReadCanBeShown) {
  std::mt19937 dice(1);
  constexpr std::size_t kCases = random_cases(20'000);
  std::size_t shown = 0;
  for (std::size_t i = 0; i < kCases; ++i) {
    nlohmann::json said = nlohmann::json::array({to_json(row()), to_json(row())}), of_node = to_json(node());
    for (unsigned times = dice() % 4; times > 0; --times) spoil(dice() % 2 == 0 ? said : of_node, dice);
    const auto far = node_from(of_node.dump());
    const auto rows = rows_from(said.dump(), 2, 2);
    if (!far || !rows || far->links.size() != 2) continue;
    ++shown;
    const std::vector<ProbeNode> nodes{node(), *far};
    EXPECT_EQ(report_table(nodes, *rows).find('\x1b'), std::string::npos);
    EXPECT_TRUE(report_json(nodes, *rows).is_object());
  }
  EXPECT_GT(shown, kCases / 4);
}

}  // namespace
}  // namespace deft::tools
