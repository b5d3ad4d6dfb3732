#include "core/link/ps/exchange.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/link/rendezvous.h"
#include "core/link/servers.h"

namespace deft::link::ps_backend {
namespace {

constexpr TimeUs kLongUs = 3'600'000'000;

std::string listed(const std::vector<std::uint32_t>& nodes) {
  std::string text;
  for (const std::uint32_t node : nodes) text += (text.empty() ? "" : ", ") + std::to_string(node);
  return text;
}

// Nodes that name other servers would wait for each other in vain.
Result<void> check_same_servers(const LinkSpec& spec, const Group& group) {
  const auto* own = reinterpret_cast<const std::byte*>(spec.interface.data());
  const auto values = meet(group, "ps", {own, spec.interface.size()});
  if (!values) return tl::unexpected(values.error());
  for (std::uint32_t node = 0; node < values->size(); ++node) {
    const std::string other(reinterpret_cast<const char*>((*values)[node].data()), (*values)[node].size());
    if (other == spec.interface) continue;
    if (!split_servers(other)) {
      return fail(ErrorKind::kViolation, "node " + std::to_string(node) + " published bad addresses of its servers");
    }
    return fail(
        ErrorKind::kMismatch,
        "node " + std::to_string(node) + " uses the parameter servers " + other + ", this one " + spec.interface,
        "give all nodes the same DEFT_LINKS");
  }
  return {};
}

}  // namespace

Exchange::Exchange(std::uint32_t node, std::uint32_t nodes, std::size_t servers, int wake_fd)
    : node_(node), nodes_(nodes), spread_(servers), wake_fd_(wake_fd) {}

Exchange::~Exchange() {
  close();
  ::close(wake_fd_);
}

// Blocks until ZeroMQ holds none of our memory any more; what was not sent yet is dropped.
void Exchange::close() {
  lanes_.clear();
  rounds_.clear();
  context_.reset();
}

Result<std::unique_ptr<Exchange>> Exchange::connect(const LinkSpec& spec, const Group& group) {
  const auto servers = split_servers(spec.interface);
  if (!servers) return tl::unexpected(servers.error());
  const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd < 0) {
    return fail(ErrorKind::kExhausted, std::string("eventfd: ") + std::strerror(errno),
                "raise the limit on open files (ulimit -n)");
  }
  std::unique_ptr<Exchange> exchange(new Exchange(group.node, group.nodes, servers->size(), wake_fd));
  if (group.nodes == 1) return exchange;
  if (auto opened = exchange->open(*servers, group); !opened) return tl::unexpected(opened.error());
  if (auto same = check_same_servers(spec, group); !same) return tl::unexpected(same.error());
  if (auto welcome = exchange->await_welcome(group); !welcome) return tl::unexpected(welcome.error());
  return exchange;
}

Result<void> Exchange::open(const std::vector<std::string>& servers, const Group& group) {
  try {
    context_ = std::make_unique<zmq::context_t>(1);
    Header header;
    header.kind = Kind::kHello;
    header.node = node_;
    header.nodes = nodes_;
    for (const std::string& server : servers) {
      Lane lane;
      lane.server = static_cast<std::uint32_t>(lanes_.size());
      lane.connection = std::make_unique<Connection>(*context_, server, lane.server, group.silence_us);
      lane.connection->hello(header, group.prefix);
      lanes_.push_back(std::move(lane));
    }
  } catch (const zmq::error_t& error) {
    return fail(ErrorKind::kInvalid, std::string("cannot connect to the parameter servers: ") + error.what(),
                "correct the addresses in DEFT_LINKS");
  }
  return {};
}

Error Exchange::not_welcome(const Connection& connection) const {
  if (!connection.answered()) {
    return {ErrorKind::kTimeout,
            "the parameter server " + connection.address() + " does not answer",
            "start it there (deftd --role server --listen " + connection.address() + "), or correct DEFT_LINKS",
            {}};
  }
  return {ErrorKind::kTimeout,
          "node " + listed(connection.absent()) + " did not reach the parameter server " + connection.address() +
              " in time",
          "check that a firewall lets TCP through from there",
          {}};
}

Result<void> Exchange::await_welcome(const Group& group) {
  while (true) {
    const Connection* missing = nullptr;
    for (Lane& lane : lanes_) {
      Connection& connection = *lane.connection;
      while (connection.receive()) continue;  // no result can be due
      connection.check_alive();
      if (connection.welcome()) continue;  // a failure since then is the first operation's
      if (connection.ended()) return tl::unexpected(*connection.ended());
      if (missing == nullptr) missing = &connection;
    }
    if (missing == nullptr) return {};
    const TimeUs left = group.connect_deadline_us - MonotonicClock::now();
    if (left <= 0) return tl::unexpected(not_welcome(*missing));
    wait(left);
  }
}

void Exchange::wait(TimeUs timeout_us) {
  std::vector<zmq::pollitem_t> items{{nullptr, wake_fd_, ZMQ_POLLIN, 0}};
  for (Lane& lane : lanes_) {
    items.push_back(lane.connection->messages());
    items.push_back(lane.connection->events());
  }
  // An interrupted wait is a short one.
  zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>((timeout_us + 999) / 1000));
  if ((items.front().revents & ZMQ_POLLIN) == 0) return;
  std::uint64_t times = 0;
  [[maybe_unused]] const auto emptied = read(wake_fd_, &times, sizeof times);
}

void Exchange::abort() {
  aborted_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_fd_, &one, sizeof one);
  close_if_aborted();
}

void Exchange::end() {
  aborted_ = true;
  const std::lock_guard lock(in_use_);
  close();
}

// After an abort somebody closes the connections: whoever has them, or else the abort itself.
void Exchange::close_if_aborted() {
  if (!aborted_ || !in_use_.try_lock()) return;
  close();
  in_use_.unlock();
}

// Does `work` with the connections; an error of it closes them.
template <typename Work>
Result<void> Exchange::guarded(Work work) {
  Result<void> result;
  {
    const std::lock_guard lock(in_use_);
    try {
      result = aborted_ ? fail(ErrorKind::kLost, "aborted") : work();
    } catch (const zmq::error_t& error) {
      result = fail(ErrorKind::kLost, std::string("ZeroMQ: ") + error.what());
    }
    if (!result) close();
  }
  close_if_aborted();
  return result;
}

Result<void> Exchange::start(std::byte* data, std::vector<Segment> segments, const Header& shape) {
  return guarded([&] {
    Round& round = rounds_.emplace_back();
    round.data = data;
    round.segments = std::move(segments);
    round.missing = round.segments.size();
    round.header = shape;
    round.header.kind = Kind::kPush;
    round.header.node = node_;
    round.header.nodes = nodes_;
    round.header.round = started_++;
    round.asked.resize(round.segments.size());
    for (Lane& lane : lanes_) lane.shares.push_back({.urgency = shape.urgency});
    for (std::uint32_t i = 0; i < round.segments.size(); ++i)
      lanes_[round.segments[i].server].shares.back().segments.push_back(i);
    return move_on();
  });
}

// Moves all rounds on until `which` gives the place of one that ends now, or until it says that there is none.
template <typename Which>
Result<void> Exchange::finish_one(Which which) {
  return guarded([&]() -> Result<void> {
    while (true) {
      if (auto ok = move_on(); !ok) return ok;
      if (which()) return {};
      if (aborted_) return fail(ErrorKind::kLost, "aborted");
      wait(kLongUs);
    }
  });
}

Result<void> Exchange::finish() {
  return finish_one([this] {
    if (rounds_.front().missing > 0) return false;
    end_round(0);
    return true;
  });
}

Result<std::optional<std::size_t>> Exchange::finish_next() {
  std::optional<std::size_t> place;
  const auto finished = finish_one([&] {
    std::vector<Ending> endings;
    for (const Round& round : rounds_) endings.push_back({round.header.urgency, round.missing == 0});
    place = next_to_finish(endings, started_ - 1 - rounds_.front().header.round);
    if (place) end_round(*place);
    return place || woken_.exchange(false);
  });
  if (!finished) return tl::unexpected(finished.error());
  return place;
}

void Exchange::end_round(std::size_t place) {
  const auto at = static_cast<std::ptrdiff_t>(place);
  rounds_.erase(rounds_.begin() + at);
  for (Lane& lane : lanes_) lane.shares.erase(lane.shares.begin() + at);
}

void Exchange::wake() {
  if (woken_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_fd_, &one, sizeof one);
}

// Pushes what there is room for, and takes what has come.
Result<void> Exchange::move_on() {
  for (Lane& lane : lanes_) {
    push_what_fits(lane);
    const std::size_t before = lane.connection->unanswered();
    if (auto ok = look_after(lane); !ok) return ok;
    if (lane.connection->unanswered() < before) push_what_fits(lane);
    lane.connection->tell_taken();
  }
  return {};
}

void Exchange::push_what_fits(Lane& lane) {
  while (const auto place = next_to_push(lane.shares)) {
    Round& round = rounds_[*place];
    Share& share = lane.shares[*place];
    const std::uint32_t number = share.segments[share.pushed++];
    const Segment& segment = round.segments[number];
    Header header = round.header;
    header.segment = number;
    header.bytes = segment.bytes;
    header.owner = segment.owner;
    round.asked[number] = true;
    const bool brings = segment.owner == kNoOwner || segment.owner == node_;
    lane.connection->push(header, round.data + segment.offset, brings ? segment.bytes : 0);
  }
}

// False for what was not asked for.
bool Exchange::take(Lane& lane, const Connection::Message& message) {
  const auto round = std::ranges::find(rounds_, message.header.round, [](const Round& r) { return r.header.round; });
  const std::uint32_t number = message.header.segment;
  if (round == rounds_.end() || number >= round->segments.size() || !round->asked[number]) return false;
  const Segment& segment = round->segments[number];
  const std::size_t bytes = segment.owner == node_ ? 0 : segment.bytes;
  if (segment.server != lane.server || message.payload.size() != bytes) return false;
  if (bytes > 0) std::memcpy(round->data + segment.offset, message.payload.data(), bytes);
  round->asked[number] = false;
  --round->missing;
  ++lane.shares[static_cast<std::size_t>(round - rounds_.begin())].answered;
  return true;
}

Result<void> Exchange::take_results(Lane& lane) {
  while (const auto message = lane.connection->receive()) {
    if (take(lane, *message)) continue;
    return fail(ErrorKind::kViolation,
                "the parameter server " + lane.connection->address() + " gave back what was not asked for",
                "install the same version of Deft on all nodes");
  }
  return {};
}

// What has come, and whether what the oldest round waits for still will.
Result<void> Exchange::look_after(Lane& lane) {
  if (auto ok = take_results(lane); !ok) return ok;
  lane.connection->check_alive();
  if (!lane.connection->ended()) return {};
  if (auto ok = take_results(lane); !ok) return ok;  // came before the server's end did
  if (lane.shares.empty() || lane.shares.front().done()) return {};
  return tl::unexpected(*lane.connection->ended());
}

}  // namespace deft::link::ps_backend
