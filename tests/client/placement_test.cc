#include "core/base/placement.h"

#include <gtest/gtest.h>

#include <map>

namespace deft {
namespace {

using Variables = std::map<std::string, std::string>;

Result<Placement> place(const Variables& variables) {
  std::vector<std::string> own;
  for (const auto& [name, value] : variables)
    if (name.starts_with("DEFT_")) own.push_back(name + "=" + value);
  auto config = Config::load({}, own, Audience::kWorker);
  EXPECT_TRUE(config) << config.error().message();
  return find_placement(*config, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

void expect(const Variables& variables, std::uint32_t rank, std::uint32_t size, std::uint32_t local_rank,
            std::uint32_t local_size, const std::string& leader) {
  auto found = place(variables);
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->rank, rank);
  EXPECT_EQ(found->size, size);
  EXPECT_EQ(found->local_rank, local_rank);
  EXPECT_EQ(found->local_size, local_size);
  EXPECT_EQ(found->leader, leader);
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "29500"}};

TEST(Placement, NobodySpeaksOfASingleWorker) { expect({}, 0, 1, 0, 1, "127.0.0.1:29610"); }

TEST(Placement, Torchrun) { expect(kTorchrun, 5, 8, 1, 4, "node0:29610"); }

TEST(Placement, OpenMpi) {
  expect({{"OMPI_COMM_WORLD_RANK", "3"},
          {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
         3, 4, 1, 2, "127.0.0.1:29610");
}

TEST(Placement, Slurm) {
  Variables slurm = {{"SLURM_PROCID", "5"},          {"SLURM_NTASKS", "7"}, {"SLURM_LOCALID", "1"},
                     {"SLURM_NTASKS_PER_NODE", "2"}, {"SLURM_NODEID", "2"}, {"SLURM_JOB_NODELIST", "gpu[03-05,9],x1"}};
  expect(slurm, 5, 7, 1, 2, "gpu03:29610");
  slurm["SLURM_TASKS_PER_NODE"] = "2(x2),3";
  expect(slurm, 5, 7, 1, 3, "gpu03:29610");
  slurm["SLURM_JOB_NODELIST"] = "alpha,beta";
  slurm["SLURM_NODEID"] = "0";
  expect(slurm, 5, 7, 1, 2, "alpha:29610");
}

TEST(Placement, DeftsOwnVariablesWin) {
  Variables variables = kTorchrun;
  variables["DEFT_RANK"] = "0";
  variables["DEFT_WORLD_SIZE"] = "2";
  variables["DEFT_LOCAL_RANK"] = "0";
  variables["DEFT_LOCAL_SIZE"] = "1";
  variables["DEFT_LEADER"] = "10.0.0.1:7";
  expect(variables, 0, 2, 0, 1, "10.0.0.1:7");
}

TEST(Placement, TheLeadersPortIsTheDaemons) {
  Variables variables = kTorchrun;
  variables["DEFT_LISTEN"] = "0.0.0.0:4711";
  expect(variables, 5, 8, 1, 4, "node0:4711");
}

TEST(Placement, WithoutAWordOfNodesThereIsOne) {
  expect({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, 1, 2, 1, 2, "127.0.0.1:29610");
}

TEST(Placement, ContradictionsNameTheirSource) {
  const auto refused = [](const Variables& variables, const std::string& word) {
    auto found = place(variables);
    return !found && found.error().kind == ErrorKind::kInvalid &&
           found.error().message().find(word) != std::string::npos;
  };
  EXPECT_TRUE(refused({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "WORLD_SIZE"));
  EXPECT_TRUE(refused({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, "RANK"));
  EXPECT_TRUE(refused({{"DEFT_RANK", "1"}}, "DEFT_WORLD_SIZE"));
  EXPECT_TRUE(refused({{"DEFT_WORLD_SIZE", "2"}}, "DEFT_RANK"));
  EXPECT_TRUE(refused({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}, "local"));
  EXPECT_TRUE(refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}}, "local"));
}

}  // namespace
}  // namespace deft
