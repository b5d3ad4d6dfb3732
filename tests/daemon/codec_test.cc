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

namespace deft::daemon {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename Number>
std::vector<Number> numbers(Number now) {
  constexpr Number kMost = std::numeric_limits<Number>::max();
  std::vector<Number> values{0, 1, 2, 3, 7, 1 << 10, 1 << 21, kMost / 2, kMost / 2 + 1, kMost - 1, kMost};
  values.insert(values.end(), {static_cast<Number>(now + 1), static_cast<Number>(now - 1)});
  return values;
}

const std::vector<double> kDoubles{std::numeric_limits<double>::quiet_NaN(),
                                   std::numeric_limits<double>::infinity(),
                                   -std::numeric_limits<double>::infinity(),
                                   -1,
                                   0,
                                   1e300};
const std::vector<std::string> kTexts{"",
                                      "x",
                                      "\xff",
                                      "\xc0\x80",
                                      "\xed\xa0\x80",
                                      std::string("\0", 1),
                                      "gather",
                                      std::string(256, 'n'),
                                      std::string(5000, 'n'),
                                      std::string(70'000, 'n')};

// Calls `visit` with each spoiled form of `field`, which `message` holds somewhere inside `root`. `message` is as it was at the end.
class Spoiler {
 public:
  // (path of the field, without indices)
  using Visit = std::function<void(const std::string& path)>;

  explicit Spoiler(Visit visit) : visit_(std::move(visit)) {}

  void spoil_all(Message& message, const std::string& path) {
    const Descriptor& kind = *message.GetDescriptor();
    for (int i = 0; i < kind.field_count(); ++i) spoil(message, *kind.field(i), path);
  }

 private:
  void spoil(Message& message, const FieldDescriptor& field, const std::string& parent) {
    const Reflection& reflection = *message.GetReflection();
    const std::string path = parent + (parent.empty() ? "" : ".") + field.name();
    if (field.is_repeated()) return spoil_list(message, field, path);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (reflection.HasField(message, &field)) spoil_all(*reflection.MutableMessage(&message, &field), path);
      return try_without(message, field, path);
    }
    spoil_value(message, field, path);
  }

  void try_without(Message& message, const FieldDescriptor& field, const std::string& path) {
    restoring(
        message, [&] { message.GetReflection()->ClearField(&message, &field); }, path);
  }

  void restoring(Message& message, const std::function<void()>& change, const std::string& path) {
    const std::unique_ptr<Message> before(message.New());
    before->CopyFrom(message);
    change();
    visit_(path);
    message.CopyFrom(*before);
  }

  void spoil_value(Message& message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& r = *message.GetReflection();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT32:
        for (const auto value : numbers(r.GetUInt32(message, &field)))
          restoring(
              message, [&] { r.SetUInt32(&message, &field, value); }, path);
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        for (const auto value : numbers(r.GetUInt64(message, &field)))
          restoring(
              message, [&] { r.SetUInt64(&message, &field, value); }, path);
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        for (const double value : kDoubles)
          restoring(
              message, [&] { r.SetDouble(&message, &field, value); }, path);
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        return restoring(
            message, [&] { r.SetBool(&message, &field, !r.GetBool(message, &field)); }, path);
      case FieldDescriptor::CPPTYPE_STRING:
        for (const auto& value : kTexts)
          restoring(
              message, [&] { r.SetString(&message, &field, value); }, path);
        return;
      default: FAIL() << path << " is of a type that this test does not know";
    }
  }

  void spoil_list(Message& message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& r = *message.GetReflection();
    const int size = r.FieldSize(message, &field);
    try_without(message, field, path);
    if (size > 0)
      restoring(
          message, [&] { r.RemoveLast(&message, &field); }, path);
    for (const int copies : {1, 5000})
      restoring(
          message,
          [&] {
            for (int i = 0; i < copies; ++i) add_one(message, field);
          },
          path);
    for (int i = 0; i < size; ++i) {
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)
        spoil_all(*r.MutableRepeatedMessage(&message, &field, i), path);
      else
        spoil_item(message, field, i, path);
    }
  }

  // Another one like the last, or an empty one.
  static void add_one(Message& message, const FieldDescriptor& field) {
    const Reflection& r = *message.GetReflection();
    const int size = r.FieldSize(message, &field);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        Message* const added = r.AddMessage(&message, &field);
        if (size > 0) added->CopyFrom(r.GetRepeatedMessage(message, &field, size - 1));
        return;
      }
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.AddUInt32(&message, &field, size > 0 ? r.GetRepeatedUInt32(message, &field, size - 1) : 0);
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.AddUInt64(&message, &field, size > 0 ? r.GetRepeatedUInt64(message, &field, size - 1) : 0);
      default: return r.AddString(&message, &field, "more");
    }
  }

  void spoil_item(Message& message, const FieldDescriptor& field, int i, const std::string& path) {
    const Reflection& r = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
      for (const auto value : numbers(r.GetRepeatedUInt32(message, &field, i)))
        restoring(
            message, [&] { r.SetRepeatedUInt32(&message, &field, i, value); }, path);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      for (const auto value : numbers(r.GetRepeatedUInt64(message, &field, i)))
        restoring(
            message, [&] { r.SetRepeatedUInt64(&message, &field, i, value); }, path);
    } else {
      for (const auto& value : kTexts)
        restoring(
            message, [&] { r.SetRepeatedString(&message, &field, i, value); }, path);
    }
  }

  Visit visit_;
};

// Whether an error begins with the way to a field that the protocol has, as "launch_order.launches[2].link: ...".
bool names_a_field(const Error& error, const Descriptor* kind) {
  std::string path = error.what.substr(0, error.what.find(':'));
  if (proto::Envelope::descriptor()->FindFieldByName(path) != nullptr) return true;  // the whole message is missing
  while (!path.empty()) {
    const std::string step = path.substr(0, path.find('.'));
    path = step.size() == path.size() ? "" : path.substr(step.size() + 1);
    const auto* const field = kind == nullptr ? nullptr : kind->FindFieldByName(step.substr(0, step.find('[')));
    if (field == nullptr) return false;
    kind = field->message_type();
  }
  return true;
}

// What became of the spoiled forms of each field.
struct Fields {
  std::map<std::string, int> refused, taken;
};

// `decode` gives what the receiver makes of a message; `taken` is what a receiver then does with it.
template <typename Variant>
Fields spoil_each(const std::vector<Variant>& messages,
                  const std::function<Result<Variant>(const wire::Received&)>& decode, const Descriptor* kind,
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
  for (const auto& message : testing::messages_to_leader()) up.insert(message.index());
  for (const auto& message : testing::messages_to_node()) down.insert(message.index());
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

// A leader in the state that testing::leader_facts describes, as far as messages bring it there.
struct Running : Outbox {
  Running() : leader(clock, *this, {"job", 7, 4}, settings()) {
    auto join = std::get<wire::Join>(testing::messages_to_leader().front());
    join.refusal.reset();
    leader.receive("b", join);
    join.ranks = {0, 1};
    leader.receive("", join);
    for (const Peer node : {"", "b"}) leader.receive(node, wire::LinksOpen{});
    for (const Peer node : {"", "b"}) leader.receive(node, testing::messages_to_leader().at(2));
    leader.bucket_ready(0, 0, 0);
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
      testing::messages_to_leader(),
      [](const wire::Received& received) { return received.to_leader(testing::leader_facts(!received.is_join())); },
      proto::ToLeader::descriptor(),
      [&](wire::ToLeader message) {
        if (++handled % 64 == 0) running = std::make_unique<Running>();  // the job may have ended by its messages
        running->leader.receive("b", message);
        running->leader.receive("c", std::move(message));
        EXPECT_FALSE(running->leader.status().dump().empty());
      });
  const std::set<std::string> free{"join.refusal",
                                   "join.refusal.suspected",
                                   "link_failed.cause.suspected",
                                   "declare.tensors.forward_position",
                                   "gradient_statistics.step",
                                   "gradient_statistics.merged_as_sums",
                                   "store_set.value",
                                   "store_get.request",

                                   "heartbeat.number",
                                   "heartbeat.reply",

                                   "failure.suspected",
                                   "stalled.step",
                                   "waiting.generation"};
  expect_checked(fields,
                 free + free_texts_of("join.refusal") + free_texts_of("link_failed.cause") + free_texts_of("failure"));
}

TEST(Codec, EveryFieldOfEveryMessageToANodeIsChecked) {
  const testing::NodeOne node;
  const auto fields = spoil_each<wire::ToNode>(
      testing::messages_to_node(), [&](const wire::Received& received) { return received.to_node(node); },
      proto::ToNode::descriptor(), [](const wire::ToNode&) {});
  const std::set<std::string> free{"declare_agreed.hash",
                                   "launch_order.launches.generation",
                                   "plan_order.plan.epoch",
                                   "plan_order.plan.activation_step",
                                   "plan_order.reason",
                                   "heartbeat.number",
                                   "heartbeat.reply",
                                   "failure.suspected",
                                   "stalled.step",
                                   "waiting.generation",
                                   "operation_failed.error.suspected",
                                   "link_stop.cause.suspected",
                                   "store_value.request"};
  expect_checked(fields, free + free_texts_of("operation_failed.error") + free_texts_of("link_stop.cause") +
                             free_texts_of("failure"));
}

std::string refusal_of(const wire::ToNode& message) {
  const std::string bytes = wire::encode({.job = "job"}, message);
  const auto decoded = wire::Received::parse(bytes_of(bytes))->to_node(testing::NodeOne());
  return decoded ? "" : decoded.error().what;
}

std::string refused_by_leader(const wire::ToLeader& message, const wire::LeaderFacts& facts = testing::leader_facts()) {
  const std::string bytes = wire::encode({.job = "job"}, message);
  const auto decoded = wire::Received::parse(bytes_of(bytes))->to_leader(facts);
  return decoded ? "" : decoded.error().what;
}

// What the leader says is copied by: a node believes it only as far as its own workers asked for it.
TEST(Codec, ACollectiveStartsOnlyAsThisNodeAskedForIt) {
  const auto start = [](const std::string& name, std::vector<std::uint64_t> counts) {
    return refusal_of(wire::OperationStart{.number = 10, .link = 0, .name = name, .counts = std::move(counts)});
  };
  EXPECT_EQ(start("gather", {3, 4, 5, 6}), "");
  EXPECT_EQ(start("gather", {4, 3, 5, 6}), "") << "how others share what is left, this node cannot know";
  EXPECT_EQ(start("gather", {3, 4, 6, 5}), "operation_start.counts[2]: 6, and this rank has 5");
  EXPECT_EQ(start("gather", {std::uint64_t{1} << 40, 4, 5, 6}),
            "operation_start.counts[0]: the ranks bring more elements than the 18 expected");
  EXPECT_EQ(start("gather", {~std::uint64_t{0}, 8, 5, 6}),
            "operation_start.counts[0]: the ranks bring more elements than the 18 expected")
      << "a sum that overflows";
  EXPECT_EQ(start("gather", {3, 3, 5, 6}), "operation_start.counts: the ranks bring fewer elements than expected");
  EXPECT_EQ(start("sum", {8, 8, 8, 9}), "operation_start.counts[3]: 9, and this rank has 8");
  EXPECT_EQ(start("sum", {9, 8, 8, 8}), "operation_start.counts[0]: not the count of this node");
  EXPECT_EQ(start("sum", {8, 8, 8}), "operation_start.counts: 3 items, and there must be 4");
  EXPECT_EQ(start("loss", {8, 8, 8, 8}), "operation_start.name: not all workers of this node asked for 'loss'");
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

TEST(Codec, OnlyMembersMaySendAndOnlyOfTheirOwnRanks) {
  EXPECT_EQ(refused_by_leader(wire::LinksOpen{}, testing::leader_facts(false)), "to_leader: the sender has not joined");
  EXPECT_EQ(refused_by_leader(wire::Leave{{1}}), "leave.ranks[0]: rank 1 is not on the sender's node");
  EXPECT_EQ(refused_by_leader(wire::Stalled{0, "w", 0, 0}), "stalled.rank: rank 0 is not on the sender's node");
  wire::CollectiveSpec other{.rank = 0, .collective = ipc::Collective::kBarrier};
  EXPECT_EQ(refused_by_leader(wire::OperationReady{"x", {other, other}}),
            "operation_ready.specs[0].rank: 0, and the sender's local rank 0 is rank 2");
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
  EXPECT_EQ(refused_by_leader(wire::OperationReady{"x", {huge, huge}}),
            "operation_ready.specs[0].count: 1099511627777, and 1099511627776 is the most");
  EXPECT_EQ(refused_by_leader(wire::StoreSet{"key", std::vector<std::byte>((4 << 20) + 1)}),
            "store_set.value: 4194305, and 4194304 is the most");
}

// Texts for people are never refused: an error must get through, whatever a worker wrote into it.
TEST(Codec, TextsForPeopleAreMadeReadable) {
  const std::string bytes = wire::encode(
      {.job = "job"},
      wire::ToNode(wire::Failure{{ErrorKind::kLost, "a\xff z\xc3\xa4", std::string(70'000, 'f'), {}}, false}));
  const auto decoded = wire::Received::parse(bytes_of(bytes))->to_node(testing::NodeOne());
  ASSERT_TRUE(decoded) << decoded.error().message();
  const auto& error = std::get<wire::Failure>(*decoded).error;
  EXPECT_EQ(error.what, "a? z\xc3\xa4");
  EXPECT_EQ(error.fix.size(), wire::kMaxTextBytes);
}

TEST(Codec, BytesThatAreNoMessageAreRefused) {
  EXPECT_FALSE(wire::Received::parse(bytes_of("\x0a")));
  EXPECT_FALSE(wire::Received::parse(bytes_of(wire::encode({.job = "\xff"}, wire::ToNode(wire::Begin{})))));
  EXPECT_FALSE(
      wire::Received::parse(bytes_of(wire::encode({.job = std::string(256, 'j')}, wire::ToNode(wire::Begin{})))));
  const std::string to_node = wire::encode({.job = "job"}, wire::ToNode(wire::Begin{}));
  EXPECT_EQ(wire::Received::parse(bytes_of(to_node))->to_leader(testing::leader_facts()).error().what,
            "to_leader: missing");
  const auto nothing = wire::Received::parse({});
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->to_node(testing::NodeOne()).error().what, "to_node: missing");
}

}  // namespace
}  // namespace deft::daemon
