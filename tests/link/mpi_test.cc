// What only the MPI link promises: MPI may do to its own process what it likes, nodes without MPI are named everywhere, and
// what a launcher says about the daemon does not reach the helper.
#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "core/link/backends.h"
#include "core/link/factories.h"
#include "core/link/mpi/environment.h"
#include "core/link/rendezvous.h"
#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

class Mpi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!link::find_backend("mpi")->built) GTEST_SKIP() << link::find_backend("mpi")->summary;
  }
};

Result<void> sum(Link& link, std::size_t bytes) {
  Bytes data(bytes);
  return all_reduce(link, data.data(), bytes, model::DType::kUInt8, model::ReduceOp::kSum);
}

std::set<pid_t> children_of(pid_t parent) {
  std::set<pid_t> children;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(parent) + "/task")) {
    std::ifstream list(task.path() / "children");
    for (pid_t child = 0; list >> child;) children.insert(child);
  }
  return children;
}

// What a helper has started.
pid_t mpi_process_of(pid_t helper) {
  const auto children = children_of(helper);
  return children.empty() ? -1 : *children.begin();
}

void publish(const LinkGroup& group, std::uint32_t node, const std::string& text) {
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  ASSERT_OK(group.store->set(meeting_key(group, "mpi", node), Bytes(first, first + text.size())));
}

Error error_of_opening(const LinkGroup& group, const LinkSpec& spec = {"mpi", "lo", "127.0.0.1"}) {
  const auto link = open_link(spec, group);
  EXPECT_FALSE(link);
  return link ? Error{} : link.error();
}

TEST_F(Mpi, AKilledMpiProcessIsAnErrorOfItsNodeAndTheOthersCanBeAborted) {
  const LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  const auto before = children_of(getpid());
  std::unique_ptr<Link> links[2];
  std::thread second([&] { links[1] = open_or_fail({"mpi"}, group, 1); });
  links[0] = open_or_fail({"mpi"}, group, 0);
  second.join();
  ASSERT_TRUE(links[0] && links[1]);
  std::vector<pid_t> started;
  for (const pid_t pid : children_of(getpid())) {
    if (!before.contains(pid)) started.push_back(pid);
  }
  ASSERT_EQ(started.size(), 2U);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    kill(mpi_process_of(started[0]), SIGKILL);
  });
  // Which of the two nodes it was does not matter: both run until something ends it.
  std::atomic<int> said_why{0};
  std::vector<std::thread> nodes;
  const TimeUs begin = MonotonicClock::now();
  for (auto& link : links) {
    nodes.emplace_back([&, mine = link.get(), other = links[&link == &links[0] ? 1 : 0].get()] {
      auto result = sum(*mine, 100'000);
      while (result) result = sum(*mine, 100'000);
      EXPECT_EQ(result.error().kind, ErrorKind::kLost);
      if (result.error().message().find("was ended by signal 9") == std::string::npos) return;
      ++said_why;
      other->abort("the other node failed");  // as the control plane does
    });
  }
  for (std::thread& node : nodes) node.join();
  killer.join();
  EXPECT_EQ(said_why, 1);
  EXPECT_LT(MonotonicClock::now() - begin, 50'000 + kPromptly);
}

TEST_F(Mpi, NoHelperOutlivesItsLink) {
  const auto before = children_of(getpid());
  on_nodes({"mpi"}, 3, [&](std::uint32_t, Link& link) {
    EXPECT_TRUE(sum(link, 1000));
    EXPECT_GE(children_of(getpid()).size(), before.size() + 1);
  });
  EXPECT_EQ(children_of(getpid()), before);
}

TEST_F(Mpi, ANodeThatGivesUpIsNamedAtOnceWithItsReason) {
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  publish(group, 1, "deft-mpi 1 gives up there is no program deft-mpi in /opt/deft/bin");
  const TimeUs begin = MonotonicClock::now();
  const Error error = error_of_opening(group);
  EXPECT_EQ(error.kind, ErrorKind::kUnavailable);
  EXPECT_THAT(error.message(), HasSubstr("open mpi:lo: node 1 cannot use MPI: there is no program deft-mpi in /opt"));
  EXPECT_LT(MonotonicClock::now() - begin, kPromptly);
}

TEST_F(Mpi, NodesWithDifferentVersionsAreBothNamed) {
  LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  publish(group, 1, "deft-mpi 1 goes on Open MPI v3.0.0");
  const Error error = error_of_opening(group);
  EXPECT_EQ(error.kind, ErrorKind::kMismatch);
  EXPECT_THAT(error.message(),
              HasSubstr("node 0 has " + *mpi_backend::library_version() + ", but node 1 has Open MPI v3.0.0"));
}

TEST_F(Mpi, WhatMpiSaysWhenItCannotStartIsInTheErrorsOfAllNodes) {
  const LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  setenv("OMPI_MCA_pml", "nonsense", 1);
  std::vector<std::thread> nodes;
  for (std::uint32_t node = 0; node < 2; ++node) {
    nodes.emplace_back([&, node] {
      LinkGroup own = group;
      own.node = node;
      const std::string message = error_of_opening(own).message();
      EXPECT_THAT(message, HasSubstr("MPI does not start: its process"));
    });
  }
  for (std::thread& node : nodes) node.join();
  unsetenv("OMPI_MCA_pml");
}

TEST_F(Mpi, WithoutANicMpiChoosesByItself) {
  const LinkGroup group = make_group(2, std::make_shared<MemoryStore>());
  std::vector<std::thread> nodes;
  for (std::uint32_t node = 0; node < 2; ++node) {
    nodes.emplace_back([&, node] {
      LinkGroup own = group;
      own.node = node;
      const auto link = open_link({"mpi", "", ""}, own);
      ASSERT_TRUE(link) << link.error().message();
      EXPECT_EQ((*link)->name(), "mpi");
      ASSERT_OK(sum(**link, 300'000));
    });
  }
  for (std::thread& node : nodes) node.join();
}

TEST(MpiEnvironment, KeepsTheUsersParametersAndDropsTheDaemonsOwnPlaceInAJob) {
  const std::vector<std::string> variables = {"PATH=/bin",
                                              "OMPI_MCA_btl_tcp_port_min_v4=5000",
                                              "OMPI_COMM_WORLD_RANK=3",
                                              "OMPI_MCA_ess=pmi",
                                              "PMIX_RANK=3",
                                              "OMPI_MCA_orte_hnp_uri=x",
                                              "PMI_SIZE=2",
                                              "SLURM_STEP_ID=0",
                                              "SLURM_JOB_ID=7",
                                              "OMPI_MCA_initial_wdir=/home",
                                              "OMPI_UNIVERSE_SIZE=2",
                                              "PMIX_SERVER_URI3=y"};
  const auto left = mpi_backend::helper_environment(variables, "eth1", 1 << 20);
  EXPECT_THAT(left, IsSupersetOf({"PATH=/bin", "OMPI_MCA_btl_tcp_port_min_v4=5000", "SLURM_JOB_ID=7",
                                  "OMPI_MCA_btl_tcp_if_include=eth1"}));
  for (const char* gone : {"OMPI_COMM_WORLD", "OMPI_MCA_ess", "PMIX_RANK", "OMPI_MCA_orte_hnp", "PMI_", "SLURM_STEP",
                           "OMPI_MCA_initial_wdir", "OMPI_UNIVERSE", "PMIX_SERVER"}) {
    EXPECT_THAT(left, Not(Contains(StartsWith(gone))));
  }
}

TEST(MpiEnvironment, ANicOfTheListWinsOverTheUsersAndTransportsAreTheUsers) {
  const std::vector<std::string> variables = {"OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_btl=self,tcp,vader"};
  const auto left = mpi_backend::helper_environment(variables, "eth1", 1 << 20);
  EXPECT_THAT(left,
              IsSupersetOf({"OMPI_MCA_btl_tcp_if_include=eth1", "OMPI_MCA_btl=self,tcp,vader", "OMPI_MCA_pml=ob1"}));
  EXPECT_THAT(left, Not(Contains("OMPI_MCA_btl_tcp_if_include=eth0")));
  EXPECT_THAT(mpi_backend::helper_environment(variables, "", 1 << 20),
              IsSupersetOf({"OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_btl=self,tcp,vader"}));
}

}  // namespace
}  // namespace deft::link::testing
