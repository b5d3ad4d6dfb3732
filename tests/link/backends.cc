#include "tests/link/backends.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <latch>
#include <limits>
#include <string>
#include <thread>

#include "core/link/backends.h"
#include "tests/link/server_process.h"

namespace deft::link::testing {

std::vector<Backend> backends() {
#ifdef DEFT_TEST_NCCL  // tests/nccl, over fakes
  return {{"nccl"}};
#endif
  return {{"gloo"}, {"ps"}, {"tcp"}, {"mpi"}};
}

std::vector<Backend> backends_with_encryption() {
  std::vector<Backend> all = backends();
  for (const Backend& backend : backends())
    if (find_backend(backend.name)->encryption == Encryption::kPeerSockets) all.push_back({backend.name, true});
  return all;
}

void BackendTest::SetUp() {
  const auto built = check_backend(GetParam().name);
  if (!built) GTEST_SKIP() << built.error().message();
}

std::string name_of(const ::testing::TestParamInfo<Backend>& info) {
  return info.param.name + (info.param.encrypts ? "_encrypted" : "");
}

LinkSpec spec_for(const Backend& backend, std::uint32_t node) {
  if (backend.name == "nccl") return {backend.name, "", ""};
  if (backend.name == "ps") return {backend.name, shared_servers(), ""};
  return {backend.name, "lo", "127.0.0." + std::to_string(node + 1)};
}

TimeUs seconds_from_now(double seconds) { return MonotonicClock::now() + static_cast<TimeUs>(seconds * 1e6); }

LinkGroup make_group(std::uint32_t nodes, std::shared_ptr<Store> store, const Backend& backend) {
  static std::atomic<int> next{0};
  LinkGroup group;
  group.nodes = nodes;
  group.prefix = "job/" + std::to_string(next++);
  group.store = std::move(store);
  group.connect_deadline_us = seconds_from_now(60);  // no test waits for it: on a busy machine MPI is slow to start
  group.encrypts = backend.encrypts;
  return group;
}

std::unique_ptr<Link> open_or_fail(const Backend& backend, LinkGroup group, std::uint32_t node) {
  group.node = node;
  auto link = open_link(spec_for(backend, node), group);
  EXPECT_TRUE(link) << link.error().message();
  return link ? *std::move(link) : nullptr;
}

void on_nodes(const Backend& backend, std::uint32_t nodes, const std::function<void(std::uint32_t, Link&)>& body) {
  const LinkGroup group = make_group(nodes, std::make_shared<MemoryStore>(), backend);
  std::latch opened(nodes);  // a node that aborts or closes its link would fail a peer that still opens
  std::vector<std::thread> running;
  for (std::uint32_t node = 0; node < nodes; ++node) {
    running.emplace_back([&, node] {
      const auto link = open_or_fail(backend, group, node);
      opened.arrive_and_wait();
      if (link) body(node, *link);
    });
  }
  for (std::thread& thread : running) thread.join();
}

Result<void> all_reduce(Link& link, std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  return link.run(WorkRequest::all_reduce(data, count, dtype, op));
}

Result<void> broadcast(Link& link, std::byte* data, std::size_t bytes, std::uint32_t root) {
  return link.run(WorkRequest::broadcast(data, bytes, root));
}

Result<void> all_gather(Link& link, std::byte* data, const std::vector<std::size_t>& bytes) {
  return link.run(WorkRequest::all_gather(data, bytes));
}

namespace {

std::size_t entries_of(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// False for a thread that has been joined: the kernel lists it for a moment longer, with PF_EXITING among its flags
// (proc_pid_stat(5), the seventh field after the name in parentheses).
bool runs(const std::filesystem::path& task) {
  constexpr unsigned kExiting = 0x4;
  std::ifstream stat(task / "stat");
  stat.ignore(std::numeric_limits<std::streamsize>::max(), ')');
  std::string state, parent, group, session, terminal, foreground;
  unsigned flags = kExiting;  // of a thread that is gone, there is nothing to read
  stat >> state >> parent >> group >> session >> terminal >> foreground >> flags;
  return (flags & kExiting) == 0;
}

}  // namespace

std::size_t open_descriptors() { return entries_of("/proc/self/fd"); }

void repeat(std::byte* data, std::size_t bytes, std::size_t period) {
  for (std::size_t filled = period; filled < bytes; filled *= 2)
    std::memcpy(data + filled, data, std::min(filled, bytes - filled));
}

bool same(const Bytes& one, const Bytes& other) {
  return one.size() == other.size() && (one.empty() || std::memcmp(one.data(), other.data(), one.size()) == 0);
}

std::size_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::count_if(begin(tasks), end(tasks), [](const auto& task) { return runs(task); }));
}

}  // namespace deft::link::testing
