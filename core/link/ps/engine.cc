#include "core/link/ps/engine.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>

#include "core/base/text.h"
#include "core/link/ps/opening_error.h"
#include "core/link/ps/segment_answer.h"
#include "core/link/rendezvous.h"
#include "core/link/servers.h"
#include "core/link/try_threads.h"

namespace deft::link::ps_backend {
namespace {

constexpr std::size_t kThreads = 3;  // one more than ZeroMQ makes, which ends the process if it gets none

std::string listed(const std::vector<std::uint32_t>& nodes) {
  return joined(nodes, ", ", [](std::uint32_t node) { return std::to_string(node); });
}

// Nodes that name other servers would wait for each other in vain. Gives the link's secret, which is that of node 0.
Result<Secret> agree(const LinkSpec& spec, const LinkGroup& group) {
  const auto own = make_secret();
  if (!own) return own;
  const auto values = meet(group, "ps", with_text(*own, spec.interface));
  if (!values) return tl::unexpected(values.error());
  Secret secret{};
  for (std::uint32_t node = 0; node < values->size(); ++node) {
    const auto other = split_text((*values)[node]);
    if (!other || !split_servers(other->text)) {
      return fail(ErrorKind::kViolation, "node " + std::to_string(node) + " published bad addresses of its servers");
    }
    if (node == 0) secret = other->secret;
    if (other->text == spec.interface) continue;
    return fail(
        ErrorKind::kMismatch,
        "node " + std::to_string(node) + " uses the parameter servers " + other->text + ", this one " + spec.interface,
        "give all nodes the same DEFT_LINKS");
  }
  return secret;
}

// ZeroMQ does not live on if it gets no descriptor for some of what it makes. So as many are tried as a link takes.
Result<void> try_descriptors(std::size_t servers) {
  const std::size_t count = 8 + 6 * servers;  // of the context; of a server's sockets and connection
  std::vector<Descriptor> tried;
  tried.reserve(count);
  while (tried.size() < count) {
    tried.emplace_back(eventfd(0, EFD_CLOEXEC));
    if (!tried.back().valid())
      return tl::unexpected(opening_error(zmq::error_t(), "cannot connect to the parameter servers", ""));
  }
  return {};
}

PsHeader header_of_pushes(const WorkRequest& request) {
  PsHeader header;
  header.kind = Kind::kPush;
  header.priority = request.priority;
  header.total = request.bytes();
  if (!request.reduces()) return header;
  header.dtype = static_cast<std::uint8_t>(request.dtype);
  header.op = static_cast<std::uint8_t>(request.op);
  return header;
}

// Without its times.
SegmentMove move_over_server(const WorkRequest& request, const PsSegment& segment, std::uint32_t number,
                             std::size_t bytes, bool is_sent) {
  using enum model::SegmentPart;
  return {.request = request.id,
          .peer = segment.server,
          .round = number,
          .bytes = bytes,
          .part = segment.owner != kNoOwner ? kBlock
                  : is_sent                 ? kSegment
                                            : kResult,
          .is_sent = is_sent,
          .is_server = true};
}

Error not_asked_for(const ServerConnection& connection) {
  return {ErrorKind::kViolation,
          "the parameter server " + connection.address() + " gave back what was not asked for",
          "install the same version of Deft on all nodes",
          {}};
}

Error not_welcome(const ServerConnection& connection) {
  if (!connection.answered()) {
    return {ErrorKind::kTimeout,
            "the parameter server " + connection.address() + " does not answer",
            "start it there (deftd server --listen " + connection.address() + "), or correct DEFT_LINKS",
            {}};
  }
  return {ErrorKind::kTimeout,
          "node " + listed(connection.absent()) + " did not reach the parameter server " + connection.address() +
              " in time",
          "check that a firewall lets TCP through from there",
          {}};
}

}  // namespace

Engine::Engine(std::uint32_t node, std::uint32_t nodes, std::size_t servers, Descriptor wake)
    : node_(node), nodes_(nodes), segmenter_(servers), wake_(std::move(wake)) {}

Engine::~Engine() { close(); }

// Blocks until ZeroMQ has given all of our memory back. Messages that are not sent yet are dropped.
void Engine::close() {
  routes_.clear();
  rounds_.clear();
  context_.reset();
}

Result<std::unique_ptr<Engine>> Engine::connect(const LinkSpec& spec, const LinkGroup& group) {
  const auto servers = split_servers(spec.interface);
  if (!servers) return tl::unexpected(servers.error());
  Descriptor wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) {
    return fail(ErrorKind::kExhausted, std::string("eventfd: ") + std::strerror(errno),
                "raise the limit on open files (ulimit -n)");
  }
  std::unique_ptr<Engine> engine(new Engine(group.node, group.nodes, servers->size(), std::move(wake)));
  if (group.nodes == 1) return engine;
  const auto secret = agree(spec, group);
  if (!secret) return tl::unexpected(secret.error());
  if (auto opened = engine->open(*servers, group, *secret); !opened) return tl::unexpected(opened.error());
  if (auto welcome = engine->await_welcome(group); !welcome) return tl::unexpected(welcome.error());
  return engine;
}

Result<void> Engine::open(const std::vector<std::string>& servers, const LinkGroup& group, const Secret& secret) {
  const auto key = CurveKey::read(group.key_file);
  if (!key) return tl::unexpected(key.error());
  if (auto ok = try_threads(kThreads); !ok) return ok;
  if (auto ok = try_descriptors(servers.size()); !ok) return ok;
  try {
    context_ = std::make_unique<zmq::context_t>(1);
    PsHeader header;
    header.kind = Kind::kHello;
    header.node = node_;
    header.nodes = nodes_;
    for (const std::string& server : servers) {
      Route route;
      route.server = static_cast<std::uint32_t>(routes_.size());
      route.connection = std::make_unique<ServerConnection>(*context_, *key, server, route.server, group.silence_us);
      route.connection->hello(header, secret, group.prefix);
      routes_.push_back(std::move(route));
    }
  } catch (const zmq::error_t& error) {
    return tl::unexpected(
        opening_error(error, "cannot connect to the parameter servers", "correct the addresses in DEFT_LINKS"));
  }
  return {};
}

Result<void> Engine::await_welcome(const LinkGroup& group) {
  while (true) {
    const ServerConnection* missing = nullptr;
    for (Route& route : routes_) {
      ServerConnection& connection = *route.connection;
      if (connection.receive()) return tl::unexpected(not_asked_for(connection));
      connection.check_alive();
      if (connection.welcome()) continue;  // a failure since then is the first operation's
      if (connection.ended()) return tl::unexpected(*connection.ended());
      if (missing == nullptr) missing = &connection;
    }
    if (missing == nullptr) return {};
    const TimeUs left = group.left_us();
    if (left <= 0) return tl::unexpected(not_welcome(*missing));
    if (group.store->ended()) return fail(ErrorKind::kLost, "the job has ended while the link opened");
    wait(std::min(left, Store::kLookUs));
  }
}

void Engine::wait(TimeUs timeout_us) {
  std::vector<zmq::pollitem_t> items{{nullptr, wake_.get(), ZMQ_POLLIN, 0}};
  for (Route& route : routes_) {
    items.push_back(route.connection->messages());
    items.push_back(route.connection->events());
  }
  // An interrupted wait is a short one.
  zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>((timeout_us + 999) / 1000));
  if ((items.front().revents & ZMQ_POLLIN) == 0) return;
  std::uint64_t times = 0;
  [[maybe_unused]] const auto emptied = read(wake_.get(), &times, sizeof times);
}

void Engine::abort() {
  aborted_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
  close_if_aborted();
}

void Engine::end() {
  aborted_ = true;
  const std::lock_guard lock(in_use_);
  close();
}

// After an abort somebody closes the connections: whoever has them, or else the abort itself.
void Engine::close_if_aborted() {
  if (!aborted_ || !in_use_.try_lock()) return;
  close();
  in_use_.unlock();
}

// Does `work` with the connections; an error of it closes them.
template <typename Work>
Result<void> Engine::guarded(Work work) {
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

Result<void> Engine::start(const WorkRequest& request, std::vector<PsSegment> segments) {
  return guarded([&] {
    Round& round = rounds_.emplace_back();
    round.request = request;
    round.segments = std::move(segments);
    round.missing = round.segments.size();
    round.header = header_of_pushes(request);
    round.header.node = node_;
    round.header.nodes = nodes_;
    round.header.round = started_++;
    round.asked_us.resize(round.segments.size());
    for (Route& route : routes_) route.shares.push_back({.priority = request.priority});
    for (std::uint32_t i = 0; i < round.segments.size(); ++i)
      routes_[round.segments[i].server].shares.back().segments.push_back(i);
    return move_on();
  });
}

Result<std::optional<std::uint64_t>> Engine::await() {
  std::optional<std::uint64_t> id;
  const auto moved = guarded([&]() -> Result<void> {
    while (true) {
      if (auto ok = move_on(); !ok || rounds_.empty()) return ok;
      std::vector<Ending> endings;
      for (const Round& round : rounds_) endings.push_back({round.header.priority, round.missing == 0});
      if (const auto place = next_to_finish(endings, started_ - 1 - rounds_.front().header.round)) {
        id = rounds_[*place].request.id;
        end_round(*place);
        return {};
      }
      if (interrupted_.exchange(false)) return {};
      if (aborted_) return fail(ErrorKind::kLost, "aborted");
      wait(UnfinishedMessages::kLookUs);
    }
  });
  if (!moved) return tl::unexpected(moved.error());
  return id;
}

void Engine::end_round(std::size_t place) {
  const auto at = static_cast<std::ptrdiff_t>(place);
  rounds_.erase(rounds_.begin() + at);
  for (Route& route : routes_) route.shares.erase(route.shares.begin() + at);
}

void Engine::interrupt() {
  if (interrupted_.exchange(true)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

// Pushes segments as long as there is room, and takes results that have come.
Result<void> Engine::move_on() {
  for (Route& route : routes_) {
    if (auto ok = push_what_fits(route); !ok) return ok;
    const std::size_t before = route.connection->unanswered();
    if (auto ok = look_after(route); !ok) return ok;
    if (route.connection->unanswered() < before)
      if (auto ok = push_what_fits(route); !ok) return ok;
    route.connection->report_taken();
    route.connection->ping(MonotonicClock::now());
  }
  return {};
}

Result<void> Engine::push_what_fits(Route& route) {
  while (const auto place = next_to_push(route.shares)) {
    Round& round = rounds_[*place];
    Share& share = route.shares[*place];
    const std::uint32_t number = share.segments[share.pushed++];
    const PsSegment& segment = round.segments[number];
    PsHeader header = round.header;
    header.segment = number;
    header.bytes = segment.bytes;
    header.owner = segment.owner;
    header.keeper = segment.keeper;
    std::vector<std::byte> recipe;
    if (round.request.encoded) recipe = round.request.encoded->recipe({segment.offset, segment.bytes});
    if (recipe.size() > kMaxRecipeBytes)
      return fail(ErrorKind::kInternal, "a segment of codes of too many places in the arena");
    const bool brings = segment.owner == kNoOwner || segment.owner == node_;
    const MoveTimer timer(round.request.observer.get());
    route.connection->push(header, recipe, {round.request.data + segment.offset, brings ? segment.bytes : 0});
    timer.tell(move_over_server(round.request, segment, number, brings ? segment.bytes : 0, true));
    round.asked_us[number] = MonotonicClock::now();
    route.load.pushed(round.asked_us[number]);
  }
  return {};
}

// False: nobody asked for it.
bool Engine::take(Route& route, const ServerConnection::Message& message) {
  const auto round = std::ranges::find(rounds_, message.header.round, [](const Round& r) { return r.header.round; });
  const std::uint32_t number = message.header.segment;
  if (round == rounds_.end() || number >= round->segments.size() || round->asked_us[number] == 0) return false;
  const PsSegment& segment = round->segments[number];
  const SegmentAnswer answer{round->request, segment, node_, nodes_};
  if (segment.server != route.server || message.payload.size() != answer.bytes()) return false;
  MoveTimer(round->request.observer.get(), round->asked_us[number])
      .tell(move_over_server(round->request, segment, number, answer.bytes(), false));
  answer.take({message.payload.data<std::byte>(), answer.bytes()});
  round->asked_us[number] = 0;
  --round->missing;
  ++route.shares[static_cast<std::size_t>(round - rounds_.begin())].answered;
  route.load.answered(segment.bytes, MonotonicClock::now());
  return true;
}

std::vector<PeerTraffic> Engine::traffic() {
  std::vector<PeerTraffic> all;
  {
    const std::lock_guard lock(in_use_);
    const TimeUs now_us = MonotonicClock::now();
    for (const Route& route : routes_) {
      all.push_back({.peer = route.server,
                     .is_server = true,
                     .sent_bytes = route.load.bytes(),
                     .busy_us = route.load.owed_us(now_us)});
      route.connection->count_pushes(all.back());
    }
  }
  close_if_aborted();
  return all;
}

Result<void> Engine::take_results(Route& route) {
  while (const auto message = route.connection->receive()) {
    if (take(route, *message)) continue;
    return tl::unexpected(not_asked_for(*route.connection));
  }
  return {};
}

// Takes results that have come. An error if the oldest round waits for results that cannot come any more.
Result<void> Engine::look_after(Route& route) {
  if (auto ok = take_results(route); !ok) return ok;
  route.connection->check_alive();
  if (!route.connection->ended()) return {};
  if (auto ok = take_results(route); !ok) return ok;  // came before the server's end did
  if (route.shares.empty() || route.shares.front().done()) return {};
  return tl::unexpected(*route.connection->ended());
}

}  // namespace deft::link::ps_backend
