// The codec against hostile peers: every field of every control message is spoiled, one at a time. The fields come from the
// descriptors of the protocol, so that a new one is spoiled, too, and must be checked or named as free.
#include "daemon/wire/codec.h"
#include "core/base/text.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <set>

#include "daemon/leader/leader.h"
#include "daemon/wire/field_checks.h"
#include "proto/control.pb.h"
#include "tests/daemon/control_messages.h"
#include "tests/daemon/spoiler.h"

namespace deft::daemon {
namespace {

using KindOfMessage = google::protobuf::Descriptor;  // deft has a Descriptor, too
using google::protobuf::Message;
using samples::names_a_field;
using samples::Spoiler;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// What became of the spoiled forms of each field.
struct Fields {
  std::map<std::string, int> refused, taken;
};

// `decode` gives what the receiver makes of a message; `taken` is what a receiver then does with it.
template <typename Variant>
Fields spoil_each(const std::vector<Variant>& messages,
                  const std::function<Result<Variant>(const wire::Received&)>& decode, const KindOfMessage* kind,
                  const std::function<void(Variant)>& handle) {
  Fields fields;
  for (const Variant& message : messages) {
    const std::string good = wire::encode({.job = "job", .incarnation = 7}, message);
    const auto unspoiled = decode(*wire::Received::parse(bytes_of(good)));
    EXPECT_TRUE(unspoiled) << message.index() << ": " << unspoiled.error().message();
    if (unspoiled) {
      EXPECT_EQ(wire::encode({.job = "job", .incarnation = 7}, *unspoiled), good) << message.index();
    }
    proto::Envelope envelope;
    EXPECT_TRUE(envelope.ParseFromString(good));
    const bool up = envelope.has_to_leader();
    Message& body = up ? static_cast<Message&>(*envelope.mutable_to_leader()) : *envelope.mutable_to_node();
    Spoiler spoiler([&](const std::string& path) {
      const auto received = wire::Received::parse(bytes_of(envelope.SerializeAsString()));
      ASSERT_TRUE(received) << path << ": " << received.error().message();
      auto decoded = decode(*received);
      if (!decoded) {
        ++fields.refused[path];
        EXPECT_TRUE(names_a_field(decoded.error(), kind)) << path << ": " << decoded.error().message();
        EXPECT_TRUE(is_utf8(decoded.error().what)) << path;
        return;
      }
      ++fields.taken[path];
      const std::string again = wire::encode({.job = "job", .incarnation = 7}, *decoded);
      EXPECT_TRUE(decode(*wire::Received::parse(bytes_of(again))))
          << path << ": what was taken is refused when sent on";
      handle(std::move(*decoded));
    });
    spoiler.spoil_all(body, "");
  }
  return fields;
}

// Each field is refused in some form, but for those that may hold anything.
void expect_checked(const Fields& fields, const std::set<std::string>& free) {
  for (const auto& [path, times] : fields.taken) {
    if (free.contains(path)) continue;
    EXPECT_TRUE(fields.refused.contains(path)) << path << " may hold anything; is that right?";
  }
  for (const auto& path : free) {
    EXPECT_FALSE(fields.refused.contains(path)) << path << " is checked, and this test calls it free";
    EXPECT_TRUE(fields.taken.contains(path)) << path << " is no field that was spoiled";
  }
}

void expect_all_kinds(std::size_t kinds, const std::set<std::size_t>& seen) { EXPECT_EQ(seen.size(), kinds); }

TEST(Codec, HasAnExampleOfEachMessage) {
  std::set<std::size_t> up, down;
  for (const auto& message : samples::messages_to_leader()) up.insert(message.index());
  for (const auto& message : samples::messages_to_node()) down.insert(message.index());
  expect_all_kinds(std::variant_size_v<wire::ToLeader>, up);
  expect_all_kinds(std::variant_size_v<wire::ToNode>, down);
  expect_all_kinds(static_cast<std::size_t>(proto::ToLeader::descriptor()->field_count()), up);
  expect_all_kinds(static_cast<std::size_t>(proto::ToNode::descriptor()->field_count()), down);
}

std::set<std::string> free_texts_of(const std::string& cause) {
  return {cause + ".what", cause + ".fix", cause + ".where"};
}

std::set<std::string> operator+(std::set<std::string> a, const std::set<std::string>& b) {
  a.insert(b.begin(), b.end());
  return a;
}

JobSettings settings() {
  return job_settings(Config(),
                      "policy=knapsack\nmax_merged_steps=4\nmax_stale_percent=100\nbucket_bytes=1MB\n"
                      "timeout=60s\nstall_timeout=600s\n")
      .value();
}

// A leader in the state that samples::leader_facts describes, as far as messages bring it there.
struct Running : LeaderHost {
  Running() : leader(clock, *this, {"job", 7, 4, {7, ""}}, settings()) {
    auto join = std::get<wire::Join>(samples::messages_to_leader().front());
    join.refusal.reset();
    leader.receive("b", join);
    join.ranks = {0, 1};
    leader.receive("", join);
    for (const Peer node : {"", "b"}) leader.receive(node, wire::LinksOpen{});
    for (const Peer node : {"", "b"}) leader.receive(node, samples::messages_to_leader().at(2));
    leader.scheduler()->bucket_ready(0, 0, 0);
  }
  void send(std::span<const Peer> nodes, const wire::ToNode&) override { sent += nodes.size(); }
  std::size_t sent = 0;
  ManualClock clock;
  Leader leader;
};

TEST(Codec, EveryFieldOfEveryMessageToTheLeaderIsChecked) {
  auto running = std::make_unique<Running>();
  std::size_t handled = 0;
  const auto fields = spoil_each<wire::ToLeader>(
      samples::messages_to_leader(),
      [](const wire::Received& received) { return received.to_leader(samples::leader_facts(!received.is_join())); },
      proto::ToLeader::descriptor(),
      [&](wire::ToLeader message) {
        if (++handled % 64 == 0) running = std::make_unique<Running>();  // the job may have ended by its messages
        running->leader.receive("b", message);
        running->leader.receive("c", std::move(message));
        EXPECT_FALSE(running->leader.status().dump().empty());
      });
  const std::set<std::string> free{"heartbeat.sent_us",
                                   "heartbeat.answered_us",
                                   "join.user",
                                   "join.refusal",
                                   "join.refusal.suspected",
                                   "link_failed.cause.suspected",
                                   "declare.tensors.forward_position",
                                   "gradient_statistics.step",
                                   "gradient_statistics.loss",
                                   "gradient_statistics.merged_as_sums",
                                   "store_set.value",
                                   "store_get.request",

                                   "heartbeat.reply",

                                   "failure.suspected",
                                   "stalled.step",
                                   "waiting.generation"};
  expect_checked(fields,
                 free + free_texts_of("join.refusal") + free_texts_of("link_failed.cause") + free_texts_of("failure"));
}

TEST(Codec, EveryFieldOfEveryMessageToANodeIsChecked) {
  const samples::NodeOne node;
  const auto fields = spoil_each<wire::ToNode>(
      samples::messages_to_node(), [&](const wire::Received& received) { return received.to_node(node); },
      proto::ToNode::descriptor(), [](const wire::ToNode&) {});
  const std::set<std::string> free{"heartbeat.sent_us",         "heartbeat.answered_us",
                                   "declare_agreed.hash",       "launch_order.launches.generation",
                                   "plan_order.plan.epoch",     "plan_order.plan.activation_step",
                                   "plan_order.reason",         "heartbeat.reply",
                                   "failure.suspected",         "stalled.step",
                                   "waiting.generation",        "collective_failed.error.suspected",
                                   "link_stop.cause.suspected", "store_value.request"};
  expect_checked(fields, free + free_texts_of("collective_failed.error") + free_texts_of("link_stop.cause") +
                             free_texts_of("failure"));
}

std::string refusal_of(const wire::ToNode& message) {
  const std::string bytes = wire::encode({.job = "job"}, message);
  const auto decoded = wire::Received::parse(bytes_of(bytes))->to_node(samples::NodeOne());
  return decoded ? "" : decoded.error().what;
}

std::string refused_by_leader(const wire::ToLeader& message, const wire::LeaderFacts& facts = samples::leader_facts()) {
  const std::string bytes = wire::encode({.job = "job"}, message);
  const auto decoded = wire::Received::parse(bytes_of(bytes))->to_leader(facts);
  return decoded ? "" : decoded.error().what;
}

// What the leader says is copied by: a node believes it only as far as its own workers asked for it.
TEST(Codec, ACollectiveStartsOnlyAsThisNodeAskedForIt) {
  const auto start = [](const std::string& name, std::vector<std::uint64_t> counts) {
    return refusal_of(wire::CollectiveStart{.number = 10, .link = 0, .name = name, .counts = std::move(counts)});
  };
  EXPECT_EQ(start("gather", {3, 4, 5, 6}), "");
  EXPECT_EQ(start("gather", {4, 3, 5, 6}), "") << "how others share what is left, this node cannot know";
  EXPECT_EQ(start("gather", {3, 4, 6, 5}), "collective_start.counts[2]: 6, and this rank has 5");
  EXPECT_EQ(start("gather", {std::uint64_t{1} << 40, 4, 5, 6}),
            "collective_start.counts[0]: the ranks bring more elements than the 18 expected");
  EXPECT_EQ(start("gather", {~std::uint64_t{0}, 8, 5, 6}),
            "collective_start.counts[0]: the ranks bring more elements than the 18 expected")
      << "a sum that overflows";
  EXPECT_EQ(start("gather", {3, 3, 5, 6}), "collective_start.counts: the ranks bring fewer elements than expected");
  EXPECT_EQ(start("sum", {8, 8, 8, 9}), "collective_start.counts[3]: 9, and this rank has 8");
  EXPECT_EQ(start("sum", {9, 8, 8, 8}), "collective_start.counts[0]: not the count of this node");
  EXPECT_EQ(start("sum", {8, 8, 8}), "collective_start.counts: 3 items, and there must be 4");
  EXPECT_EQ(start("loss", {8, 8, 8, 8}), "collective_start.name: not all workers of this node asked for 'loss'");
}

TEST(Codec, LaunchesLieInTheirBucketsAndSlots) {
  const auto launch = [](wire::Launch one) { return refusal_of(wire::LaunchOrder{10, {one}}); };
  EXPECT_EQ(launch({0, 0, 0, 3, 1024, 3072, 3, 1}), "") << "it runs on over the bucket behind";
  EXPECT_EQ(launch({0, 0, 0, 3, 1024, 3073, 3, 1}), "launch_order.launches[0].bytes: 3073, and 3072 is the most");
  EXPECT_EQ(launch({0, 0, 1, 3, 2048, 1, 3, 1}),
            "launch_order.launches[0].offset: 2048, and there are 2048 bytes in the bucket");
  EXPECT_EQ(launch({0, 0, 1, 3, 8, ~std::uint64_t{0}, 3, 1}),
            "launch_order.launches[0].bytes: 18446744073709551615, and 2040 is the most");
  EXPECT_EQ(launch({2, 0, 0, 3, 0, 8, 3, 1}), "launch_order.launches[0].link: 2, and there are 2 links");
  EXPECT_EQ(launch({0, 1, 0, 3, 0, 8, 3, 1}), "launch_order.launches[0].group: no group 1 is agreed");
  EXPECT_EQ(launch({.bucket = 0, .bytes = 8, .half = static_cast<model::AllReduceHalf>(3)}),
            "launch_order.launches[0].half: 3, and 2 is the most");
  EXPECT_EQ(refusal_of(wire::LaunchOrder{12, {{0, 0, 0, 3, 0, 8, 3, 1}}}),
            "launch_order.first: 12, and launch 10 is due");
}

TEST(Codec, NodesHaveEachRankOnceAndTheReceiverItsOwn) {
  const auto joined = [](std::vector<std::vector<std::uint32_t>> ranks, std::uint32_t node) {
    wire::Joined message{.nodes = {}, .node = node};
    for (auto& own : ranks) message.nodes.push_back({"host", std::move(own), {{"a", ""}, {"b", ""}}});
    return refusal_of(std::move(message));
  };
  EXPECT_EQ(joined({{0, 1}, {2, 3}}, 1), "");
  EXPECT_EQ(joined({}, 0), "joined.node: 0, and there are 0 nodes");
  EXPECT_EQ(joined({{0, 1}, {2, 3}}, 2), "joined.node: 2, and there are 2 nodes");
  EXPECT_EQ(joined({{0, 1}, {2, 3}}, 0), "joined.nodes[0].ranks: they are not those of this node");
  EXPECT_EQ(joined({{0}, {2, 3}}, 1), "joined.nodes: they have 3 ranks, and the world has 4");
  EXPECT_EQ(joined({{0, 1, 2}, {2, 3}}, 1), "joined.nodes[1].ranks: rank 2 is on two nodes");
  EXPECT_EQ(joined({{0, 1}, {2, 3}, {}}, 1), "joined.nodes[2].ranks: 0 items, and there must be 1 to 4096");
  EXPECT_EQ(joined({{0, 1, 100'000}, {2, 3}}, 1), "joined.nodes[0].ranks[2]: 100000, and there are 4 ranks");
}

TEST(Codec, AListOfNodesThatIsEncodedOnceIsTheOneOfEachNode) {
  const wire::Header header{.job = "job", .incarnation = 7};
  wire::Joined message{.nodes = {{"a", {0, 1}, {{"x", ""}}}, {"b", {2, 3}, {{"x", ""}}}}, .node = 0};
  const std::string common = wire::encode(header, message);
  for (const std::uint32_t node : {0U, 1U}) {
    message.node = node;
    proto::Envelope merged, whole;
    ASSERT_TRUE(merged.ParseFromString(common + wire::joined_as_node(node)));
    ASSERT_TRUE(whole.ParseFromString(wire::encode(header, message)));
    EXPECT_EQ(merged.SerializeAsString(), whole.SerializeAsString()) << node;
  }
}

TEST(Codec, ATimeThatIsNoNumberIsRefused) {
  for (const double us : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0})
    EXPECT_TRUE(refused_by_leader(wire::StepTime{us}).starts_with("step_time.us: ")) << us;
  auto statistics = std::get<wire::GradientStatistics>(samples::messages_to_leader().at(5));
  statistics.target = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refused_by_leader(statistics).starts_with("gradient_statistics.target: "));
}

TEST(Codec, ALinkMayNameManyServers) {
  auto join = std::get<wire::Join>(samples::messages_to_leader().front());
  const auto refused = [&](std::size_t servers) {
    join.links.front().name = "ps:";
    for (std::size_t i = 0; i < servers; ++i)
      join.links.front().name += "server" + std::to_string(i) + ".cluster:7701,";
    return refused_by_leader(join, samples::leader_facts(false));
  };
  EXPECT_EQ(refused(100), "");
  EXPECT_NE(refused(400).find("join.links[0].name: "), std::string::npos) << refused(400);
}

TEST(Codec, TimesOfCodecsAreOfTheJobsCodecsAndOnlyOnce) {
  const auto refused = [](const wire::CodecTime& first, const wire::CodecTime& second = {2, 8, 1, 1}) {
    return refused_by_leader(wire::StepTime{1200, {first, second}});
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(refused({1, 8, 1, 1}), "");
  EXPECT_EQ(refused({3, 8, 1, 1}), "step_time.codecs[0].codec: 3, and there are 3 codecs");
  EXPECT_EQ(refused({0, 8, 1, 1}), "step_time.codecs[0].codec: 0, which encodes nothing");
  EXPECT_EQ(refused({2, 8, 1, 1}), "step_time.codecs[1].codec: it comes twice");
  EXPECT_TRUE(refused({1, std::uint64_t{1} << 61, 1, 1}).starts_with("step_time.codecs[0].bytes: "));
  for (const double us : {nan, -1.0, 1e16}) {
    EXPECT_TRUE(refused({1, 8, us, 1}).starts_with("step_time.codecs[0].encode_us: ")) << us;
    EXPECT_TRUE(refused({1, 8, 1, us}).starts_with("step_time.codecs[0].decode_us: ")) << us;
  }
  EXPECT_EQ(refused_by_leader(wire::StepTime{1200, {{1}, {2}, {1}}}),
            "step_time.codecs: 3 items, and there must be 0 to 2");
  auto facts = samples::leader_facts();
  facts.codecs = 1;
  EXPECT_FALSE(refused_by_leader(wire::StepTime{1200, {{1, 8, 1, 1}}}, facts).empty()) << "a job without codecs";
  EXPECT_EQ(refused_by_leader(wire::StepTime{1200}, facts), "");
}

TEST(Codec, OnlyMembersMaySendAndOnlyOfTheirOwnRanks) {
  EXPECT_EQ(refused_by_leader(wire::LinksOpen{}, samples::leader_facts(false)), "to_leader: the sender has not joined");
  EXPECT_EQ(refused_by_leader(wire::Leave{{1}}), "leave.ranks[0]: rank 1 is not on the sender's node");
  EXPECT_EQ(refused_by_leader(wire::Stalled{0, "w", 0, 0}), "stalled.rank: rank 0 is not on the sender's node");
  wire::CollectiveSpec other{.rank = 0, .collective = ipc::Collective::kBarrier};
  EXPECT_EQ(refused_by_leader(wire::CollectiveReady{"x", {other, other}}),
            "collective_ready.specs[0].rank: 0, and the sender's local rank 0 is rank 2");
}

TEST(Codec, SizesThatOverflowAreRefused) {
  const auto declare = [](std::vector<std::uint64_t> shape) {
    return refused_by_leader(wire::Declare{0, "sgd", {{"w", model::DType::kFloat64, std::move(shape)}}, 1});
  };
  EXPECT_EQ(declare({1 << 20, 1 << 19}), "");
  EXPECT_EQ(declare({1 << 20, (1 << 19) + 1}), "declare.tensors[0].shape: the tensor has more than 4 TiB");
  EXPECT_EQ(declare({std::uint64_t{1} << 32, std::uint64_t{1} << 32}),
            "declare.tensors[0].shape: the tensor has more than 4 TiB");
  wire::CollectiveSpec huge{.rank = 2, .collective = ipc::Collective::kAllReduce};
  huge.count = (std::uint64_t{1} << 40) + 1;
  EXPECT_EQ(refused_by_leader(wire::CollectiveReady{"x", {huge, huge}}),
            "collective_ready.specs[0].count: 1099511627777, and 1099511627776 is the most");
  EXPECT_EQ(refused_by_leader(wire::StoreSet{"key", std::vector<std::byte>((4 << 20) + 1)}),
            "store_set.value: 4194305, and 4194304 is the most");
}

// Texts for people are never refused: an error must get through, whatever a worker wrote into it.
TEST(Codec, TextsForPeopleAreMadeReadable) {
  const std::string bytes = wire::encode(
      {.job = "job"},
      wire::ToNode(wire::Failure{{ErrorKind::kLost, "a\xff z\xc3\xa4", std::string(70'000, 'f'), {}}, false}));
  const auto decoded = wire::Received::parse(bytes_of(bytes))->to_node(samples::NodeOne());
  ASSERT_TRUE(decoded) << decoded.error().message();
  const auto& error = std::get<wire::Failure>(*decoded).error;
  EXPECT_EQ(error.what, "a? z\xc3\xa4");
  EXPECT_EQ(error.fix.size(), wire::kMaxTextBytes);
}

TEST(Codec, TheHeaderIsReadWithoutTheBody) {
  const std::string body = "\xc2\x02\x03\xff\xff\xff";  // to_leader: what cannot be read
  const std::string bytes = wire::encode({.job = "job", .incarnation = 7}, wire::ToNode(wire::Begin{})) + body;
  const auto header = wire::header_of(bytes_of(bytes));
  ASSERT_TRUE(header);
  EXPECT_EQ(header->job, "job");
  EXPECT_EQ(header->incarnation, 7U);
  EXPECT_EQ(header->version, wire::kControlVersion);
  EXPECT_FALSE(wire::Received::parse(bytes_of(bytes)));
  for (const std::string& wrong : {bytes.substr(0, bytes.size() - 1), std::string("\x0a"), bytes + "\xff"})
    EXPECT_FALSE(wire::header_of(bytes_of(wrong)));
  const std::string refusal = wire::encode_refusal({.job = "job"}, {ErrorKind::kMismatch, "another version", "", {}});
  EXPECT_TRUE(wire::Received::parse(bytes_of(refusal))->is_refusal());
  EXPECT_FALSE(wire::header_of(bytes_of(refusal + "\xc2\x02\x80\x80\x20" + std::string(512 << 10, 'x'))))
      << "a refusal is short";
}

TEST(Codec, BytesThatAreNoMessageAreRefused) {
  EXPECT_FALSE(wire::Received::parse(bytes_of("\x0a")));
  EXPECT_FALSE(wire::Received::parse(bytes_of(wire::encode({.job = "\xff"}, wire::ToNode(wire::Begin{})))));
  EXPECT_FALSE(
      wire::Received::parse(bytes_of(wire::encode({.job = std::string(256, 'j')}, wire::ToNode(wire::Begin{})))));
  const std::string to_node = wire::encode({.job = "job"}, wire::ToNode(wire::Begin{}));
  EXPECT_EQ(wire::Received::parse(bytes_of(to_node))->to_leader(samples::leader_facts()).error().what,
            "to_leader: missing");
  const auto nothing = wire::Received::parse({});
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->to_node(samples::NodeOne()).error().what, "to_node: missing");
}

}  // namespace
}  // namespace deft::daemon
