// Feeds the control plane of a daemon with whatever libFuzzer makes up, in both directions. The first byte says what the rest is:
//
//   l, n      one message for the codec: from a node to the leader, or from the leader to a node. What is taken must be taken again
//             when it is encoded
//   J ... E   messages to a job of a daemon, in the stage that the letter says (stage_of); its leader and a stranger send them
//   others    messages to the leader of a running job; a node of it and a stranger send them
//
// A series of messages: a byte for the sender and the time that passes, two bytes for the length, the message. Job and leader must
// survive all of it, and the daemon of the job must, too.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <variant>

#include "daemon/leader/leader.h"
#include "tests/daemon/control_messages.h"
#include "tests/daemon/fake_daemon.h"
#include "tests/fuzz/reached.h"

namespace {

using namespace deft;          // NOLINT(google-build-using-namespace): the whole program is about them
using namespace deft::daemon;  // NOLINT(google-build-using-namespace)

void require(bool holds) {
  if (!holds) std::abort();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// `Message` is a variant.
template <typename Message>
void count(const Message& message) {
  static fuzz::Reached reached(std::is_same_v<Message, wire::ToLeader>
                                   ? "control messages to the leader that can be read"
                                   : "control messages to a node that can be read",
                               std::variant_size_v<Message>);
  reached.count(message.index());
}

template <typename Message, typename Decode>
void check(std::span<const std::byte> bytes, const Decode& decode) {
  const auto received = wire::Received::parse(bytes);
  if (!received) return require(!received.error().what.empty());
  const Result<Message> message = decode(*received);
  if (!message) return require(message.error().what.find(": ") != std::string::npos);
  count(*message);
  const std::string again = wire::encode(received->header(), *message);
  const auto reread = wire::Received::parse(bytes_of(again));
  require(reread.has_value());
  const Result<Message> same = decode(*reread);
  require(same.has_value() && wire::encode(received->header(), *same) == again);
}

struct Silence final : LeaderHost {
  void send(std::span<const Peer> nodes, const wire::ToNode& message) override {
    for (const Peer& node : nodes) require(node.size() < 2 && !message.valueless_by_exception());
  }
};

// A leader of four ranks on two nodes, as control_messages.h describes, in which a group is agreed and a bucket is under way.
struct Running {
  Running() {
    auto join = std::get<wire::Join>(daemon::samples::messages_to_leader().front());
    join.refusal.reset();
    leader.receive("b", join);
    join.ranks = {0, 1};
    leader.receive("", join);
    for (const Peer node : {"", "b"}) leader.receive(node, wire::LinksOpen{});
    for (const Peer node : {"", "b"}) leader.receive(node, daemon::samples::messages_to_leader().at(2));
    leader.scheduler()->bucket_ready(0, 0, 0);
  }
  static JobSettings settings() {
    return job_settings(Config(), "policy=knapsack\nmax_merged_steps=4\nmax_stale_percent=100\nbucket_bytes=1MB\n")
        .value();
  }
  ManualClock clock;
  Silence outbox;
  Leader leader{clock, outbox, {"job", 7, 4, {7, ""}}, settings()};
};

// Calls take(sender, message) for each message of a series.
template <typename Take>
void for_each_message(std::span<const std::byte> rest, const Take& take) {
  while (rest.size() >= 3) {
    const auto sender = static_cast<unsigned>(rest[0]) % 4;
    const std::size_t wanted = static_cast<std::size_t>(rest[1]) << 8 | static_cast<std::size_t>(rest[2]);
    const std::size_t length = std::min(wanted, rest.size() - 3);
    take(sender, rest.subspan(3, length));
    rest = rest.subspan(3 + length);
  }
}

void feed_leader(std::span<const std::byte> messages) {
  Running job;
  for_each_message(messages, [&](unsigned sender, std::span<const std::byte> message) {
    const Peer from = sender == 0 ? "c" : "b";  // a stranger, or node 1
    job.clock.advance(sender * 1'000'000);
    job.leader.tick();
    const auto received = wire::Received::parse(message);
    if (!received) return;
    auto decoded = received->to_leader(job.leader.facts(from));
    if (decoded)
      job.leader.receive(from, std::move(*decoded));
    else
      job.leader.refuse(from, decoded.error());
  });
  require(!job.leader.status().dump().empty());
}

void feed_job(FakeDaemon::Stage stage, std::span<const std::byte> messages) {
  const std::uint64_t failed = failed_callbacks();
  FakeDaemon daemon;
  daemon.bring_to(stage);
  for_each_message(messages, [&](unsigned sender, std::span<const std::byte> message) {
    daemon.deliver(sender == 0 ? "stranger" : "leader",
                   std::string(reinterpret_cast<const char*>(message.data()), message.size()));
    daemon.open_links();
    daemon.finish_launches();
    daemon.advance(sender * 100'000);
  });
  require(failed_callbacks() == failed);  // nothing has thrown
  require(!daemon.jobs.status().dump().empty());
}

// J, K, R, A, B, S, E: joining, connecting, running, agreed, busy, stopping, released.
std::optional<FakeDaemon::Stage> stage_of(std::uint8_t letter) {
  constexpr std::string_view kLetters = "JKRABSE";
  const auto at = kLetters.find(static_cast<char>(letter));
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<FakeDaemon::Stage>(static_cast<std::size_t>(FakeDaemon::Stage::kJoining) + at);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  static const daemon::samples::NodeOne kNode;
  if (data[0] == 'l') {
    check<wire::ToLeader>(bytes, [](const wire::Received& received) {
      return received.to_leader(daemon::samples::leader_facts(!received.is_join()));
    });
  } else if (data[0] == 'n') {
    check<wire::ToNode>(bytes, [](const wire::Received& received) { return received.to_node(kNode); });
  } else if (const auto stage = stage_of(data[0])) {
    feed_job(*stage, bytes);
  } else {
    feed_leader(bytes);
  }
  return 0;
}
