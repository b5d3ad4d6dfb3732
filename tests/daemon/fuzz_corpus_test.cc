// The seeds of tests/fuzz_control: each is what its fuzzer takes as it is. DEFT_WRITE_CORPUS=FOLDER writes them anew, after the protocol
// has changed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/daemon/fake_daemon.h"

namespace deft::daemon {
namespace {

const wire::Header kHeader{.job = "job", .incarnation = FakeDaemon::kIncarnation};

// A message in a series, of the leader or of node 1.
std::string in_series(const std::string& message) {
  return {"\x01" + std::string(1, static_cast<char>(message.size() >> 8)) + static_cast<char>(message.size() & 255) +
          message};
}

std::map<std::string, std::string> seeds() {
  std::map<std::string, std::string> seeds;
  std::string to_leader = "x";
  for (const auto& message : samples::messages_to_leader()) {
    const std::string bytes = wire::encode(kHeader, message);
    seeds["leader-" + std::to_string(seeds.size())] = "l" + bytes;
    to_leader += in_series(bytes);
  }
  for (const auto& message : samples::messages_to_node())
    seeds["node-" + std::to_string(seeds.size())] = "n" + wire::encode(kHeader, message);
  seeds["leader-series"] = to_leader;
  for (std::size_t i = 0; i < std::size(FakeDaemon::kStages); ++i) {
    std::string series(1, "JKRABSE"[i]);
    for (const auto& message : samples::messages_to_job(FakeDaemon::kStages[i] >= FakeDaemon::Stage::kBusy))
      if (!std::holds_alternative<wire::Failure>(message)) series += in_series(wire::encode(kHeader, message));
    seeds["job-" + std::to_string(i)] = series;
  }
  return seeds;
}

TEST(FuzzCorpus, HasASeedForEachMessageAndStageThatTheCodecTakes) {
  if (const char* const folder = std::getenv("DEFT_WRITE_CORPUS"); folder != nullptr)
    for (const auto& [name, bytes] : seeds()) std::ofstream(std::filesystem::path(folder) / name) << bytes;
  const samples::NodeOne node;
  for (const auto& [name, expected] : seeds()) {
    std::ifstream file(std::filesystem::path(DEFT_FUZZ_CORPUS) / name);
    ASSERT_TRUE(file) << name << " is missing: write the corpus anew";
    std::ostringstream text;
    text << file.rdbuf();
    const std::string seed = text.str();
    ASSERT_EQ(seed.size(), expected.size()) << name;  // the order of a map in protobuf is not fixed
    ASSERT_EQ(seed[0], expected[0]) << name;
    const auto received = wire::Received::parse(std::as_bytes(std::span(seed).subspan(1)));
    if (seed[0] == 'l') {
      ASSERT_TRUE(received) << name;
      EXPECT_TRUE(received->to_leader(samples::leader_facts(!received->is_join()))) << name;
    }
    if (seed[0] == 'n') {
      ASSERT_TRUE(received) << name;
      EXPECT_TRUE(received->to_node(node)) << name;
    }
  }
}

}  // namespace
}  // namespace deft::daemon
