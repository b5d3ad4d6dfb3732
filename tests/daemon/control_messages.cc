#include "tests/daemon/control_messages.h"

#include "daemon/leader/group_coordinator.h"

namespace deft::daemon::samples {
namespace {

const Error kError{ErrorKind::kLost, "connection reset", "look at the cable", "on host1"};

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

wire::CollectiveSpec spec(std::uint32_t rank, ipc::Collective collective, std::uint64_t count, std::uint64_t capacity) {
  return {.rank = rank,
          .collective = collective,
          .dtype = model::DType::kFloat32,
          .op = model::ReduceOp::kSum,
          .root = 0,
          .count = count,
          .capacity = capacity};
}

}  // namespace

std::vector<wire::ToLeader> messages_to_leader() {
  constexpr auto kGather = ipc::Collective::kAllGather;
  return {
      wire::Join{.host = "host1",
                 .deft_version = "1.0",
                 .world = 4,
                 .user = 7,
                 .ranks = {2, 3},
                 .settings = {{"policy", "fifo"}, {"bucketing", "size"}},
                 .links = {{"gloo:eth0", "10.0.0.2"}, {"gloo:eth1", "10.0.1.2"}},
                 .refusal = kError},
      wire::LinksOpen{},
      wire::Declare{.group = 0,
                    .name = "sgd",
                    .tensors = {{"fc.weight", model::DType::kFloat32, {32, 16}, 1},
                                {"fc.bias", model::DType::kFloat32, {512}, 0}},
                    .slots = 4,
                    .op = model::ReduceOp::kSum},
      wire::CollectiveReady{.name = "gather", .specs = {spec(2, kGather, 5, 18), spec(3, kGather, 6, 18)}},
      wire::CollectiveReady{.name = "barrier",
                            .specs = {{.rank = 2, .collective = ipc::Collective::kBarrier},
                                      {.rank = 3, .collective = ipc::Collective::kBarrier}}},
      wire::GradientStatistics{.group = 0,
                               .step = 8,
                               .ranks = 2,
                               .local_norms = 3,
                               .average_norms = 2,
                               .loss = 1.5,
                               .learning_rate = 0.1,
                               .target = 0.5,
                               .merged_as_sums = true},
      wire::StepTime{1200, {{1, 1 << 20, 350, 200.5}, {2, 4096, 3, 0}}},
      wire::StoreSet{"job/7/0/peers", bytes_of(std::string("a\0b", 3))},
      wire::StoreGet{3, {"job/7/0/peers", "job/7/1/peers"}},
      wire::LinkFailed{0, 1, kError},
      wire::LinkStopped{0, 1, 7},
      wire::NodeProgress{{{1, 5, 8}, {0, 6, 9}}},
      wire::Heartbeat{.reply = true},
      wire::Failure{kError, true},
      wire::Leave{{3}},
      wire::Stalled{2, "fc.weight", 4, 1500},
      wire::Waiting{0, 1, 4},
      wire::Release{0},
  };
}

std::vector<wire::ToNode> messages_to_node(std::uint64_t next_number, std::uint32_t link_epoch) {
  model::Plan plan;
  plan.cycles.usual = {2, {{0, 1, 3}}};
  plan.bucket_bytes = {2048, 2048};
  plan.step_us = 1000;
  plan.compute_us = 900;
  return {
      wire::Joined{.nodes = {{"host0", {0, 1}, {{"gloo:eth0", "10.0.0.1"}, {"gloo:eth1", "10.0.1.1"}}},
                             {"host1", {2, 3}, {{"gloo:eth0", "10.0.0.2"}, {"gloo:eth1", "10.0.1.2"}}}},
                   .node = 1},
      wire::Begin{},
      wire::DeclareAgreed{.group = 0, .buckets = {{0, 2048}, {2048, 2048}}, .hash = 77},
      wire::LaunchOrder{.first = next_number,
                        .launches = {{0, 0, 0, 3, 0, 2048, 3, 1},
                                     {1, 0, 1, 3, 1024, 1024, 3, 1, 6, 0, model::AllReduceHalf::kAllGather}}},
      wire::PlanOrder{.group = 0, .epoch = 2, .activation_step = 40, .plan = plan, .reason = "the links are slower"},
      wire::CollectiveStart{.number = next_number, .link = 1, .name = "gather", .counts = {3, 4, 5, 6}},
      wire::CollectiveStart{.number = next_number, .link = 0, .name = "sum", .counts = {8, 8, 8, 8}},
      wire::CollectiveFailed{"sum", {ErrorKind::kMismatch, "the counts differ", "give the same", {}}},
      wire::StoreValue{3, {bytes_of("10.0.0.1"), bytes_of("10.0.0.2")}},
      wire::LinkStop{0, link_epoch, kError},
      wire::LinkReplaced{1, 1, 0, 6},
      wire::JobProgress{{{link_epoch, next_number / 2}, {0, next_number / 2 + 1}}},
      wire::Heartbeat{},
      wire::Failure{kError, false},
      wire::Leave{{0, 1}},
      wire::Stalled{1, "fc.weight", 4, 1500},
      wire::Waiting{0, 1, 4},
      wire::TraceOrder{ipc::TraceAction::kStart, "/tmp/traces", 20},
      wire::TraceOrder{ipc::TraceAction::kDump, ""},
      wire::Late{"sum", 1, 1500},
      wire::Released{0},
  };
}

wire::DeclareAgreed agreement() {
  wire::DeclareAgreed agreed{.group = 0, .buckets = {{0, 2048}, {2048, 2048}}};
  agreed.hash = group_hash(std::get<wire::Declare>(messages_to_leader().at(2)).tensors, agreed);
  return agreed;
}

wire::Launch launch(std::uint32_t link, std::uint32_t bucket, std::uint64_t generation) {
  return {.link = link, .bucket = bucket, .generation = generation, .bytes = 2048, .last_step = generation};
}

std::vector<wire::ToNode> messages_to_job(bool busy) {
  auto messages = messages_to_node(busy ? 2 : 0, 0);
  for (auto& message : messages) {
    if (auto* const value = std::get_if<wire::StoreValue>(&message)) *value = {1, {{std::byte{'x'}}}};
    if (auto* const agreed = std::get_if<wire::DeclareAgreed>(&message)) *agreed = agreement();
    if (auto* const replaced = std::get_if<wire::LinkReplaced>(&message)) *replaced = {1, 1, 0, 1};
    if (auto* const order = std::get_if<wire::LaunchOrder>(&message))
      order->launches = {launch(0, 0, busy ? 1 : 0), launch(1, 1, busy ? 1 : 0)};
  }
  return messages;
}

wire::LeaderFacts leader_facts(bool joined) {
  wire::LeaderFacts facts;
  facts.world = 4;
  if (joined) facts.sender_ranks = {2, 3};
  facts.link_epochs = {1, 0};
  facts.next_number = 10;
  facts.codecs = 3;
  facts.buckets = [](std::uint32_t group) { return group == 0 ? std::size_t{2} : 0; };
  return facts;
}

std::optional<wire::NodeFacts::Group> NodeOne::group(std::uint32_t id) const {
  if (id != 0) return std::nullopt;
  return Group{.slot_bytes = 4096, .slots = 4, .buckets = buckets_, .may_go = true};
}

std::optional<wire::NodeFacts::AskedCollective> NodeOne::collective(const std::string& name) const {
  if (name == "gather") return AskedCollective{.first = spec(2, ipc::Collective::kAllGather, 5, 18), .counts = {5, 6}};
  if (name == "sum") return AskedCollective{.first = spec(2, ipc::Collective::kAllReduce, 8, 0), .counts = {8, 8}};
  return std::nullopt;
}

std::optional<std::size_t> NodeOne::keys_asked(std::uint64_t request) const {
  return request == 3 ? std::optional<std::size_t>(2) : std::nullopt;
}

}  // namespace deft::daemon::samples
