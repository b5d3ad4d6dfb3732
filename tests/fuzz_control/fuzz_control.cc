// Feeds the codec of the control plane with whatever libFuzzer makes up, in both directions, and a leader of a running job with
// what the codec takes. The first byte says what the rest is: 'l' bytes from a node to the leader, 'n' bytes from the leader to a
// node, anything else a series of messages to a leader, each behind a byte for its length and its sender.
//
// What is taken must be taken again when it is encoded, and the leader must survive it.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "daemon/leader/leader.h"
#include "tests/daemon/control_messages.h"

namespace {

using namespace deft;          // NOLINT(google-build-using-namespace): the whole program is about them
using namespace deft::daemon;  // NOLINT(google-build-using-namespace)

void require(bool holds) {
  if (!holds) std::abort();
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename Message, typename Decode>
void check(std::span<const std::byte> bytes, const Decode& decode) {
  const auto received = wire::Received::parse(bytes);
  if (!received) return require(!received.error().what.empty());
  const Result<Message> message = decode(*received);
  if (!message) return require(message.error().what.find(": ") != std::string::npos);
  const std::string again = wire::encode(received->header(), *message);
  const auto reread = wire::Received::parse(bytes_of(again));
  require(reread.has_value());
  const Result<Message> same = decode(*reread);
  require(same.has_value() && wire::encode(received->header(), *same) == again);
}

struct Silence final : Outbox {
  void send(std::span<const Peer> nodes, const wire::ToNode& message) override {
    for (const Peer& node : nodes) require(node.size() < 2 && !message.valueless_by_exception());
  }
};

// A leader of four ranks on two nodes, as control_messages.h describes, in which a group is agreed and a bucket is under way.
struct Running {
  Running() {
    auto join = std::get<wire::Join>(daemon::testing::messages_to_leader().front());
    join.refusal.reset();
    leader.receive("b", join);
    join.ranks = {0, 1};
    leader.receive("", join);
    for (const Peer node : {"", "b"}) leader.receive(node, wire::LinksOpen{});
    for (const Peer node : {"", "b"}) leader.receive(node, daemon::testing::messages_to_leader().at(2));
    leader.bucket_ready(0, 0, 0);
  }
  static JobSettings settings() {
    return job_settings(Config(), "policy=knapsack\nmax_merged_steps=4\nmax_stale_percent=100\nbucket_bytes=1MB\n")
        .value();
  }
  ManualClock clock;
  Silence outbox;
  Leader leader{clock, outbox, {"job", 7, 4}, settings()};
};

void feed(std::span<const std::byte> rest) {
  Running job;
  while (rest.size() >= 2) {
    const auto sender = static_cast<unsigned>(rest[0]) % 4;
    const std::size_t length = std::min<std::size_t>(static_cast<std::size_t>(rest[1]), rest.size() - 2);
    const Peer from = sender == 0 ? "c" : "b";  // a stranger, or node 1
    const auto received = wire::Received::parse(rest.subspan(2, length));
    rest = rest.subspan(2 + length);
    job.clock.advance(sender * 1'000'000);
    job.leader.tick();
    if (!received) continue;
    auto message = received->to_leader(job.leader.facts(from));
    if (message)
      job.leader.receive(from, std::move(*message));
    else
      job.leader.refuse(from, message.error());
  }
  require(!job.leader.status().dump().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  static const daemon::testing::NodeOne kNode;
  if (data[0] == 'l') {
    check<wire::ToLeader>(bytes, [](const wire::Received& received) {
      return received.to_leader(daemon::testing::leader_facts(!received.is_join()));
    });
  } else if (data[0] == 'n') {
    check<wire::ToNode>(bytes, [](const wire::Received& received) { return received.to_node(kNode); });
  } else {
    feed(bytes);
  }
  return 0;
}
