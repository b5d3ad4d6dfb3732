#include "core/link/ps/parameter_server.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "core/base/numbers.h"
#include "core/base/text.h"
#include "core/link/address.h"
#include "core/link/ps/opening_error.h"
#include "core/link/secret.h"

namespace deft::link::ps_backend {
namespace {

constexpr char kMonitorEndpoint[] = "inproc://deft-ps-connections";
constexpr std::size_t kMaxLinks = 4096;
constexpr int kUnreadMessages = 32;   // of one connection: a link has fewer on their way
constexpr int kUnsentMessages = 256;  // to one connection, likewise
constexpr int kHandshakeMs = 10'000;
constexpr TimeUs kTurnUs = 1'000'000;
// ZeroMQ says that a connection ended, but not whose, and may say it a moment before a send to it fails.
constexpr std::array<TimeUs, 3> kChecksAfterUs = {5'000, 50'000, 500'000};
// Of bytes. A link leaves less than 2 MiB unanswered. Beside them its heartbeats count, a few bytes each, until it says something. Who is
// no link yet says a short hello.
constexpr UnfinishedMessages::Limits kMostUnfinished{.of_one = 8 << 20, .of_all = 128 << 20, .of_strangers = 8 << 20};
constexpr int kMessagesAtOnce = 64;  // between looks at what else has happened

// The name of a link, without its secret; empty if it cannot be one.
std::string shown_name(const std::string& link) {
  const auto parts = split_text(std::as_bytes(std::span(link)));
  return parts && check_name(parts->text, kMaxLinkName, "the link's name") ? parts->text : "";
}

}  // namespace

ParameterServer::ParameterServer(Options options, CurveKey key)
    : options_(std::move(options)),
      router_(context_, zmq::socket_type::router),
      guard_{std::move(key), {}, {}, {}, 0} {}

ParameterServer::~ParameterServer() {
  guard_.watch.close();
  router_.close();
}

Result<std::unique_ptr<ParameterServer>> ParameterServer::open(Options options) {
  auto key = CurveKey::read(options.key_file);
  if (!key) return tl::unexpected(key.error());
  std::unique_ptr<ParameterServer> server(new ParameterServer(std::move(options), *std::move(key)));
  if (auto ok = server->listen(); !ok) return tl::unexpected(ok.error());
  return server;
}

Result<void> ParameterServer::listen() {
  const auto endpoint = listening_endpoint(options_.listen);
  if (!endpoint) return tl::unexpected(endpoint.error());
  try {
    router_.set(zmq::sockopt::linger, 0);
    router_.set(zmq::sockopt::sndhwm, kUnsentMessages);
    router_.set(zmq::sockopt::rcvhwm, kUnreadMessages);
    router_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(kMostFromALinkBytes));
    router_.set(zmq::sockopt::router_mandatory, true);
    router_.set(zmq::sockopt::handshake_ivl, kHandshakeMs);
    router_.set(zmq::sockopt::tcp_keepalive, 1);  // a node whose machine is gone closes nothing
    router_.set(zmq::sockopt::tcp_keepalive_idle, 30);
    router_.set(zmq::sockopt::tcp_keepalive_intvl, 10);
    router_.set(zmq::sockopt::tcp_keepalive_cnt, 3);
    guard_.gate.open(context_, guard_.key);
    guard_.key.guard_listener(router_);
    guard_.watch.open(context_, router_, kMonitorEndpoint);
    router_.bind(*endpoint);
    address_ = router_.get(zmq::sockopt::last_endpoint).substr(std::string_view("tcp://").size());
    guard_.port = parse_whole<std::uint16_t>(address_.substr(address_.rfind(':') + 1)).value_or(0);
    return {};
  } catch (const zmq::error_t& error) {
    const std::string what = "a parameter server cannot listen on " + options_.listen;
    if (error.num() == EADDRINUSE)
      return fail(ErrorKind::kExhausted, what + ": " + error.what(),
                  "another program holds this port: stop it, or choose another DEFT_LISTEN");
    return tl::unexpected(opening_error(error, what, "DEFT_LISTEN is host:port with an address of this machine"));
  }
}

void ParameterServer::log(const std::string& line) const {
  if (options_.log) options_.log(line);
}

void ParameterServer::run(int stop_fd) {
  while (!stop_.done) {
    wait(stop_fd);
    watch_connections();
    if (guard_.gate.is_open()) drops_[static_cast<std::size_t>(Drop::kKey)] += guard_.gate.turn().refused;
    for (int i = 0; i < kMessagesAtOnce && receive_one(); ++i) continue;
    const TimeUs now = MonotonicClock::now();
    if (!checks_.empty() && now >= checks_.front()) {
      checks_.erase(checks_.begin());
      find_the_gone({});
    }
    put_away_the_gone();
    if (options_.on_turn) options_.on_turn();
    if (stop_.begun && (links_.empty() || now >= stop_.at_us)) stop_.done = true;
  }
}

void ParameterServer::wait(int stop_fd) {
  std::vector<zmq::pollitem_t> items{{nullptr, stop_fd, ZMQ_POLLIN, 0},
                                     {router_.handle(), 0, ZMQ_POLLIN, 0},
                                     {guard_.watch.socket().handle(), 0, ZMQ_POLLIN, 0}};
  if (guard_.gate.is_open()) items.push_back({guard_.gate.socket().handle(), 0, ZMQ_POLLIN, 0});
  TimeUs timeout = kTurnUs;
  const TimeUs now = MonotonicClock::now();
  if (!checks_.empty()) timeout = std::clamp<TimeUs>(checks_.front() - now, 0, timeout);
  if (stop_.begun) timeout = std::clamp<TimeUs>(stop_.at_us - now, 0, timeout);
  if (!guard_.unfinished.empty()) timeout = std::min(timeout, UnfinishedMessages::kLookUs);
  // An interrupted wait is a short one.
  zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>((timeout + 999) / 1000));
  if ((items.front().revents & ZMQ_POLLIN) != 0) on_stop(stop_fd);
}

void ParameterServer::on_stop(int stop_fd) {
  std::array<char, 512> told{};  // an eventfd's number or signalfd's records
  if (read(stop_fd, told.data(), told.size()) <= 0) return;
  if (stop_.begun) stop_.done = true;
  stop_.begun = true;
  stop_.at_us = MonotonicClock::now() + options_.grace_us;
  log(links_.empty() ? "shutting down" : "shutting down when the links that are open have closed");
}

bool ParameterServer::receive_one() {
  zmq::message_t identity, first, payload;
  if (!router_.recv(identity, zmq::recv_flags::dontwait)) return false;
  int frames = 1;
  std::uint64_t wire_bytes = 0;
  while (router_.get(zmq::sockopt::rcvmore)) {
    zmq::message_t frame;
    if (!router_.recv(frame, zmq::recv_flags::none)) break;
    wire_bytes += wire_bytes_of(frame.size());
    (frames++ == 1 ? first : payload) = std::move(frame);
  }
  const std::string peer = identity.to_string();
  if (frames == 3) {
    on_message(peer, first, std::move(payload));
  } else {
    drop(Drop::kUnreadable);
  }
  if (members_.contains(peer))
    guard_.unfinished.delivered(first);
  else
    guard_.unfinished.delivered_by_stranger(first, wire_bytes);
  return true;
}

void ParameterServer::on_message(const std::string& peer, const zmq::message_t& first, zmq::message_t payload) {
  const auto header = header_of(first);
  if (!header) return drop(Drop::kUnreadable);  // somebody who speaks another language
  if (header->version != kVersion) {
    return refuse(peer, Drop::kOtherVersion,
                  {ErrorKind::kMismatch,
                   "the parameter server speaks version " + std::to_string(kVersion) + ", the link version " +
                       std::to_string(header->version),
                   "install the same version of Deft on all nodes",
                   {}});
  }
  const auto member = members_.find(peer);
  if (header->kind == Kind::kHello && member == members_.end()) return on_hello(peer, *header, payload);
  if (member == members_.end()) return drop(Drop::kStranger);
  ServedLink& link = *links_.at(member->second.link);
  if (link.failed()) return drop(Drop::kRefused);
  if (header->kind == Kind::kPush) return link.push(member->second.node, *header, std::move(payload), recipe_of(first));
  if (header->kind == Kind::kTaken) return link.taken(member->second.node, header->taken);
  if (header->kind == Kind::kPing) return ping(peer);
  drop(Drop::kBadHello);
}

void ParameterServer::on_hello(const std::string& peer, const PsHeader& header, const zmq::message_t& payload) {
  const std::string name = payload.to_string();
  const std::string shown = shown_name(name);
  if (header.nodes < 2 || header.nodes > kMaxNodes || header.node >= header.nodes || shown.empty()) {
    return refuse(peer, Drop::kBadHello, {ErrorKind::kViolation, "a hello that cannot be", "", {}});
  }
  if (stop_.begun)
    return refuse(peer, Drop::kRefused, {ErrorKind::kUnavailable, "the parameter server is shutting down", "", {}});
  if (links_.size() >= kMaxLinks && links_.count(name) == 0)
    return refuse(peer, Drop::kFull,
                  {ErrorKind::kExhausted,
                   "the parameter server has " + std::to_string(kMaxLinks) + " links already",
                   "start another one",
                   {}});
  if (links_.count(name) != 0) find_the_gone(name);  // a node that has died must not be counted as one that came
  put_away_the_gone();
  auto& link = links_[name];
  const bool added = link == nullptr;
  if (added) {
    link = std::make_unique<ServedLink>(
        header.nodes, [this, name](std::uint32_t node, const PsHeader& message, zmq::message_t& bytes) {
          send_to_member(name, node, message, bytes);
        });
  }
  members_[peer] = {name, header.node};
  const auto before = peers_.find({name, header.node});
  const std::string replaced = before == peers_.end() ? std::string() : before->second;
  if (replaced.empty()) peers_[{name, header.node}] = peer;
  if (auto joined = link->join(header.node, header.nodes); !joined) {
    members_.erase(peer);
    if (replaced.empty()) peers_.erase({name, header.node});
    if (added) links_.erase(name);
    return refuse(peer, Drop::kRefused, joined.error());
  }
  if (added) log("the link " + shown + " of " + std::to_string(header.nodes) + " nodes begins");
}

void ParameterServer::refuse(const std::string& peer, Drop why, const Error& error) {
  drop(why);
  const std::string text = error.message();
  zmq::message_t payload(text.data(), text.size());
  send(peer, failed_header(error), payload);
}

bool ParameterServer::send(const std::string& peer, const PsHeader& header, zmq::message_t& payload) {
  try {
    if (!router_.send(zmq::buffer(peer), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) {
      // The node does not read. It can miss news, but without a result it cannot go on.
      return header.kind == Kind::kPing || header.kind == Kind::kPresent;
    }
    router_.send(zmq::buffer(&header, sizeof header), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    router_.send(payload, zmq::send_flags::dontwait);
    return true;
  } catch (const zmq::error_t&) {
    return false;  // it has gone
  }
}

void ParameterServer::send_to_member(const std::string& link, std::uint32_t node, const PsHeader& header,
                                     zmq::message_t& payload) {
  const auto peer = peers_.find({link, node});
  if (peer != peers_.end() && !send(peer->second, header, payload)) gone_.push_back(peer->second);
}

void ParameterServer::watch_connections() {
  const auto turn = guard_.watch.turn();
  const TimeUs now = MonotonicClock::now();
  for (const int fd : turn.connected) guard_.unfinished.connected(fd, guard_.port);
  drops_[static_cast<std::size_t>(Drop::kHandshake)] += turn.failed;
  drops_[static_cast<std::size_t>(Drop::kEndless)] += guard_.unfinished.look(kMostUnfinished, now);
  if (turn.ended == 0) return;
  // The next look stays where it is: strangers who come and go must not put it off for ever.
  const TimeUs next =
      checks_.empty() ? now + kChecksAfterUs.front() : std::min(checks_.front(), now + kChecksAfterUs.front());
  checks_.assign(1, next);
  for (const TimeUs after : kChecksAfterUs)
    if (now + after > next) checks_.push_back(now + after);
}

// Looks at the members of one link, or of all links if none is named.
void ParameterServer::find_the_gone(const std::string& link) {
  for (const auto& [peer, member] : members_)
    if (link.empty() || member.link == link) ping(peer);
}

void ParameterServer::ping(const std::string& peer) {
  zmq::message_t nothing;
  if (!send(peer, PsHeader(), nothing)) gone_.push_back(peer);
}

// Not while a link is sending: that a node has gone makes it send again.
void ParameterServer::put_away_the_gone() {
  while (!gone_.empty()) {
    const std::string peer = gone_.back();
    gone_.pop_back();
    const auto it = members_.find(peer);
    if (it == members_.end()) continue;
    const Member member = it->second;
    members_.erase(it);
    peers_.erase({member.link, member.node});
    ServedLink& link = *links_.at(member.link);
    link.leave(member.node);
    if (!link.empty()) continue;
    log("the link " + shown_name(member.link) + " has ended after " + std::to_string(link.bytes()) + " bytes");
    links_.erase(member.link);
  }
}

}  // namespace deft::link::ps_backend
