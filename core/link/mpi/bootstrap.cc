#include "core/link/mpi/bootstrap.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>

#include "core/link/rendezvous.h"

namespace deft::link::mpi_backend {
namespace {

using Bytes = std::vector<std::byte>;

// The text that a node publishes: whether it goes on, and its content or the reason why it does not.
constexpr std::string_view kGoesOn = "deft-mpi 1 goes on ";
constexpr std::string_view kGivesUp = "deft-mpi 1 gives up ";

Bytes encode(std::string_view kind, std::string_view content) {
  const std::string text = std::string(kind) + std::string(content);
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

std::string node_name(std::uint32_t node) { return "node " + std::to_string(node); }

// The content of `node`'s value, or why it does not go on.
Result<std::string> decode(const Bytes& value, std::uint32_t node) {
  const std::string_view text(reinterpret_cast<const char*>(value.data()), value.size());
  if (text.starts_with(kGoesOn)) return std::string(text.substr(kGoesOn.size()));
  if (text.starts_with(kGivesUp)) {
    return fail(ErrorKind::kUnavailable,
                node_name(node) + " cannot use MPI: " + std::string(text.substr(kGivesUp.size())),
                "run deft doctor there, or leave mpi out of DEFT_LINKS on all nodes");
  }
  return fail(ErrorKind::kViolation, node_name(node) + " published nonsense instead of what MPI needs");
}

// "Open MPI v4.1.4" of the library's long text.
std::string short_version(const std::string& text) { return text.substr(0, text.find(',')); }

Error helper_ended(const AgentProcess& helper, const std::string& how) {
  const std::string words = helper.last_words();
  return {ErrorKind::kUnavailable,
          "MPI does not start: its process " + how + (words.empty() ? "" : ", and its last words were: " + words),
          "run deft doctor on this node",
          {}};
}

}  // namespace

std::string Bootstrap::topic() const { return exchanges_ == 0 ? "mpi" : "mpi-" + std::to_string(exchanges_); }

void Bootstrap::give_up(const Error& error) {
  if (error.kind == ErrorKind::kTimeout || group_.store == nullptr) return;  // the others have the same deadline
  (void)group_.store->set(meeting_key(group_, topic(), group_.node), encode(kGivesUp, error.what));
}

Result<std::string> Bootstrap::greeting(AgentProcess& helper, TimeUs deadline_us) {
  const auto hello = helper.hear(deadline_us);
  if (!hello || hello->kind != ControlKind::kHello) return tl::unexpected(helper_ended(helper, "ended at once"));
  return short_version(hello->content);
}

// Until the helper says something or ends, or the deadline has passed.
void Bootstrap::await(const AgentProcess& helper) const {
  pollfd wait{helper.control_socket(), POLLIN, 0};
  for (TimeUs left_us = group_.left_us(); left_us > 0; left_us = group_.left_us()) {
    if (poll_until({&wait, 1}, MonotonicClock::now() + left_us)) return;
  }
}

Result<std::uint32_t> Bootstrap::connect(AgentProcess& helper) {
  await(helper);
  const auto version = greeting(helper, MonotonicClock::now());
  if (!version) return tl::unexpected(version.error());
  if (auto met = meet_others(*version); !met) return tl::unexpected(met.error());
  connected_.assign(group_.nodes, false);
  connected_[group_.node] = true;
  helper.send(ControlKind::kStart, {});
  auto tag_limit = await_connections(helper);
  if (tag_limit) helper.connected();
  return tag_limit;
}

Result<void> Bootstrap::meet_others(const std::string& version) {
  const auto values = meet(group_, topic(), encode(kGoesOn, version));
  ++exchanges_;
  if (!values) return tl::unexpected(values.error());
  for (std::uint32_t node = 0; node < group_.nodes; ++node) {
    const auto other = decode((*values)[node], node);
    if (!other) return tl::unexpected(other.error());
    if (*other != version) {
      return fail(ErrorKind::kMismatch,
                  node_name(group_.node) + " has " + version + ", but " + node_name(node) + " has " + *other,
                  "install the same MPI on all nodes");
    }
  }
  return {};
}

Result<std::uint32_t> Bootstrap::await_connections(AgentProcess& helper) {
  while (true) {
    std::array<pollfd, 2> waits{pollfd{helper.control_socket(), POLLIN, 0}, pollfd{helper.data_socket(), POLLIN, 0}};
    if (!poll_until(waits, MonotonicClock::now() + std::min(group_.left_us(), Store::kLookUs))) {
      if (group_.store->ended()) return fail(ErrorKind::kLost, "the job has ended while the link opened");
      if (group_.left_us() > 0) continue;
      std::uint32_t missing = 0;
      while (connected_[missing]) ++missing;
      return fail(ErrorKind::kTimeout, node_name(missing) + " came, but MPI has no connection to it in time",
                  "see its daemon's log, and check that a firewall lets MPI through (OMPI_MCA_btl_tcp_if_include, "
                  "OMPI_MCA_btl_tcp_port_min_v4)");
    }
    if (waits[0].revents != 0) {
      if (auto served = serve_helper(helper); !served) return tl::unexpected(served.error());
    }
    if (waits[1].revents == 0) continue;
    std::array<News, kMaxRecords> news;
    const ssize_t bytes = recv(helper.data_socket(), news.data(), sizeof news, MSG_DONTWAIT);
    if (bytes <= 0) continue;  // the control socket says how it ended
    for (std::size_t i = 0; i < static_cast<std::size_t>(bytes) / sizeof(News); ++i) {
      if (news[i].kind == NewsKind::kReady) return news[i].value;
      if (news[i].kind == NewsKind::kGreeted) connected_[news[i].peer] = true;
    }
  }
}

// Answers one message of the helper.
Result<void> Bootstrap::serve_helper(AgentProcess& helper) {
  await(helper);
  const auto message = helper.hear(MonotonicClock::now());
  if (!message) return tl::unexpected(helper_ended(helper, "ended"));
  if (message->kind == ControlKind::kEnded) return tl::unexpected(helper_ended(helper, message->content));
  if (message->kind != ControlKind::kFence) return {};
  const auto all = exchange(message->content);
  if (!all) return tl::unexpected(all.error());
  if (!helper.send_in_parts(ControlKind::kFencedPart, ControlKind::kFenced, *all))
    return tl::unexpected(helper_ended(helper, "ended"));
  return {};
}

// The bytes of all nodes, one behind the other.
Result<std::string> Bootstrap::exchange(const std::string& own) {
  const std::string here = topic();
  ++exchanges_;
  auto published = group_.store->set(meeting_key(group_, here, group_.node), encode(kGoesOn, own));
  if (!published) return tl::unexpected(published.error());
  std::string all;
  for (std::uint32_t node = 0; node < group_.nodes; ++node) {
    const std::string key = meeting_key(group_, here, node);
    auto value = group_.store->get({&key, 1}, group_.connect_deadline_us);
    if (!value && value.error().kind == ErrorKind::kTimeout) {
      return fail(ErrorKind::kTimeout, node_name(node) + " came, but its MPI did not start in time",
                  "see its daemon's log");
    }
    if (!value) return tl::unexpected(value.error());
    const auto content = decode(value->front(), node);
    if (!content) return content;
    all += *content;
  }
  return all;
}

}  // namespace deft::link::mpi_backend
