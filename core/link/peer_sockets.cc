#include "core/link/peer_sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <string>

#include "core/link/address.h"
#include "core/link/encryption/key_exchange.h"
#include "core/link/rendezvous.h"
#include "core/link/secret.h"

namespace deft::link {
namespace {

constexpr std::uint64_t kCall = 0x314c4c4143544645, kAnswer = 0x31525753414f4544;
constexpr std::size_t kStrangers = 256;    // connections that have not proved themselves; the oldest goes first
constexpr TimeUs kStrangerUs = 2'000'000;  // so long a connection may take to prove itself
constexpr int kBacklog = 4096;             // strangers come while the members still meet, and then nobody is taken
constexpr int kCallersATurn = 64;          // after so many new callers the earlier ones are heard
constexpr unsigned kHangUps = 20;          // of one member: strangers may besiege it, for seconds
constexpr TimeUs kAgainUs = 100'000;       // after so long a member is called again

struct Greeting {
  std::uint64_t magic = 0;
  std::uint64_t member = 0;  // who says it
  Secret secret{};           // of who hears it; if they encrypt, made of the keys of both
};
static_assert(sizeof(Greeting) == 32);

struct Counters {
  std::atomic<std::uint64_t> wrong{0}, late{0}, crowded_out{0};
};
Counters strangers;

// Calls from the address of the link's NIC. Where routers lie between the nodes, rules send the packets of each address by its own NIC;
// without an address they all leave by the first one. 0, or errno.
int bind_to(const std::string& ip, const Address& called, const Descriptor& socket) {
  const auto own = make_address(ip, 0);
  if (!own || own->family() != called.family()) return 0;
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);  // connect() chooses one
  return bind(socket.get(), own->get(), own->bytes) == 0 ? 0 : errno;
}

// There may be a way a moment later, while a NIC or a switch starts. EADDRNOTAVAIL: a NIC that is down loses its addresses of IPv6.
bool may_pass(int error) {
  return error == EHOSTUNREACH || error == ENETUNREACH || error == ETIMEDOUT || error == EADDRNOTAVAIL;
}

// A member that strangers crowd out of its own port, or whose answer was lost, may do so. EPIPE: before it heard the greeting.
bool is_hang_up(int error) { return error == ECONNRESET || error == EPIPE; }

std::string error_text() { return std::strerror(errno); }

// Closed by the other side, or broken, with nothing left to read.
bool has_ended(const Descriptor& socket) {
  char byte = 0;
  const ssize_t got = recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

// accept4() wants a free descriptor before it looks for a caller.
bool has_caller(const Descriptor& listener) {
  pollfd waiting{listener.get(), POLLIN, 0};
  return poll(&waiting, 1, 0) > 0;
}

struct Invitation {
  Secret secret{};
  Address address;
  std::optional<PublicKey> key;  // none: this member does not encrypt
};

// The address, and behind a line break the key.
std::optional<Invitation> decode(const std::vector<std::byte>& value) {
  const auto parts = split_text(value);
  if (!parts) return std::nullopt;
  const std::string_view text = parts->text;
  const std::size_t end = std::min(text.find('\n'), text.size());
  const auto address = from_text(std::as_bytes(std::span(text.substr(0, end))));
  if (!address) return std::nullopt;
  Invitation invitation{parts->secret, *address, std::nullopt};
  if (end == text.size()) return invitation;
  invitation.key = PublicKey::parse(text.substr(end + 1));
  return invitation.key ? std::optional(invitation) : std::nullopt;
}

// A connection that has not proved itself yet.
struct Newcomer {
  Descriptor socket;
  std::optional<std::uint32_t> called;  // the member that this side called; none: the other side called
  TimeUs since_us = 0;
  bool said = false;  // this side has sent its greeting
  int error = 0;      // why the connection cannot be made
  std::size_t have = 0;
  Greeting heard{};
};

int error_of(const Descriptor& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

class Meeting {
 public:
  Meeting(const LinkSpec& spec, const LinkGroup& group) : spec_(spec), group_(group), sockets_(group.nodes) {}

  Result<PeerConnections> hold(std::string_view topic);

 private:
  enum class Outcome { kWait, kProved, kRefused };

  Result<void> listen();
  Result<void> read_invitations(std::string_view topic);
  Result<void> agree_on_keys(std::string_view topic);
  Result<void> call(std::uint32_t peer);
  Result<void> call_again(const Newcomer& refused);
  Result<void> call_later(std::uint32_t peer, int error);
  Result<void> make_due_calls();
  Result<void> turn();
  Result<void> meet_all();
  Result<PeerConnections> encrypt();
  Result<void> take_callers();
  Outcome step(Newcomer& newcomer);
  bool say(Newcomer& newcomer, std::uint64_t magic, std::uint32_t to);
  Outcome hear(Newcomer& newcomer) const;
  [[nodiscard]] bool may_come(std::uint64_t member) const;
  [[nodiscard]] std::string missing() const;  // members, as text; empty: all are connected
  [[nodiscard]] std::string name_of(std::uint32_t peer) const { return group_.member + " " + std::to_string(peer); }
  [[nodiscard]] tl::unexpected<Error> unreachable(std::uint32_t peer, const std::string& why) const {
    return fail(ErrorKind::kLost, "no connection to " + name_of(peer) + ": " + why, "see the log of " + name_of(peer));
  }

  const LinkSpec& spec_;
  const LinkGroup& group_;
  Secret secret_{};
  Descriptor listener_;
  std::vector<Invitation> invitations_;
  std::optional<KeyPair> own_keys_;   // none: nothing is encrypted
  std::vector<ConnectionKeys> keys_;  // by member
  std::list<Newcomer> newcomers_;
  struct Unreached {
    int error = 0;                 // of the last call
    std::optional<TimeUs> due_us;  // of the next one; none: it is under way
    unsigned hang_ups = 0;
  };
  std::map<std::uint32_t, Unreached> unreached_;  // members
  std::vector<Descriptor> sockets_;
};

Result<void> Meeting::listen() {
  auto address = make_address(spec_.address, 0);
  if (!address) return tl::unexpected(address.error());
  listener_ = Descriptor(socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.valid() || bind(listener_.get(), address->get(), address->bytes) != 0 ||
      ::listen(listener_.get(), kBacklog) != 0)
    return fail(ErrorKind::kUnavailable, "cannot listen on " + spec_.address + ": " + error_text());
  const auto secret = make_secret();
  if (!secret) return tl::unexpected(secret.error());
  secret_ = *secret;
  if (!group_.encrypts) return {};
  auto keys = KeyPair::make();
  if (!keys) return tl::unexpected(keys.error());
  own_keys_ = *keys;
  return {};
}

Result<void> Meeting::read_invitations(std::string_view topic) {
  const auto port = port_of(listener_.get());
  if (!port) return tl::unexpected(port.error());
  std::string text = to_text(spec_.address, *port);
  if (own_keys_) text += '\n' + own_keys_->public_key().text();
  auto values = meet(group_, topic, with_text(secret_, text));
  if (!values) return tl::unexpected(values.error());
  for (std::uint32_t peer = 0; peer < group_.nodes; ++peer) {
    const auto invitation = decode((*values)[peer]);
    if (!invitation) return fail(ErrorKind::kViolation, name_of(peer) + " published a bad address");
    if (invitation->key.has_value() != own_keys_.has_value())
      return fail(ErrorKind::kMismatch,
                  name_of(own_keys_ ? peer : group_.node) + " does not encrypt what it sends, and " +
                      name_of(own_keys_ ? group_.node : peer) + " does",
                  "set encrypt_gradients to the same value on all nodes");
    invitations_.push_back(*invitation);
  }
  return own_keys_ ? agree_on_keys(topic) : Result<void>();
}

Result<void> Meeting::agree_on_keys(std::string_view topic) {
  keys_.resize(group_.nodes);
  for (std::uint32_t peer = 0; peer < group_.nodes; ++peer) {
    if (peer == group_.node) continue;
    const auto [answers, calls] = std::minmax(peer, group_.node);
    std::string about = meeting_key(group_, topic, calls) + "/" + std::to_string(answers);
    for (const std::uint32_t member : {calls, answers})
      for (const std::byte byte : invitations_[member].secret) about += static_cast<char>(byte);
    auto keys = own_keys_->agree(*invitations_[peer].key, {.calls = calls == group_.node, .about = about});
    if (!keys) return tl::unexpected(keys.error().in(name_of(peer)));
    keys_[peer] = *keys;
  }
  return {};
}

Result<void> Meeting::call(std::uint32_t peer) {
  const Address& address = invitations_[peer].address;
  Descriptor made(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) return fail(ErrorKind::kExhausted, "cannot make a socket: " + error_text());
  if (const int error = bind_to(spec_.address, address, made)) return call_later(peer, error);
  if (connect(made.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS) return call_later(peer, errno);
  newcomers_.push_back({.socket = std::move(made), .called = peer, .since_us = MonotonicClock::now()});
  return {};
}

Result<void> Meeting::call_again(const Newcomer& refused) {
  const int error = refused.error != 0 ? refused.error : error_of(refused.socket);
  return call_later(*refused.called, error != 0 ? error : ECONNRESET);
}

Result<void> Meeting::call_later(std::uint32_t peer, int error) {
  Unreached& unreached = unreached_[peer];
  if (!is_hang_up(error) && !may_pass(error)) return unreachable(peer, std::strerror(error));
  if (is_hang_up(error) && ++unreached.hang_ups > kHangUps) return unreachable(peer, "it hangs up");
  unreached.error = error;
  unreached.due_us = MonotonicClock::now() + kAgainUs;
  return {};
}

Result<void> Meeting::make_due_calls() {
  for (auto& [peer, unreached] : unreached_) {
    if (!unreached.due_us || *unreached.due_us > MonotonicClock::now()) continue;
    unreached.due_us.reset();
    if (auto ok = call(peer); !ok) return ok;
  }
  return {};
}

Result<void> Meeting::take_callers() {
  for (int i = 0; i < kCallersATurn; ++i) {
    Descriptor made(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!made.valid()) {
      const int error = errno;
      if ((error != EMFILE && error != ENFILE) || !has_caller(listener_)) return {};
      return fail(ErrorKind::kExhausted, std::string("cannot take a connection: ") + std::strerror(error),
                  "allow more descriptors: ulimit -n, LimitNOFILE of the unit");  // poll would never wait again
    }
    const auto is_caller = [](const Newcomer& newcomer) { return !newcomer.called; };
    if (static_cast<std::size_t>(std::ranges::count_if(newcomers_, is_caller)) >= kStrangers) {
      newcomers_.erase(std::ranges::find_if(newcomers_, is_caller));
      ++strangers.crowded_out;
    }
    newcomers_.push_back({.socket = std::move(made), .called = {}, .since_us = MonotonicClock::now()});
  }
  return {};
}

// A greeting is shorter than any socket's buffer: it goes at once, or the connection is broken.
bool Meeting::say(Newcomer& newcomer, std::uint64_t magic, std::uint32_t to) {
  const Greeting greeting{magic, group_.node, own_keys_ ? keys_[to].says : invitations_[to].secret};
  newcomer.said = send(newcomer.socket.get(), &greeting, sizeof greeting, MSG_NOSIGNAL) == sizeof greeting;
  return newcomer.said;
}

// A member that is here comes again only if its connection broke, for instance before it heard the answer.
bool Meeting::may_come(std::uint64_t member) const {
  if (member <= group_.node || member >= group_.nodes) return false;
  return !sockets_[member].valid() || has_ended(sockets_[member]);
}

Meeting::Outcome Meeting::hear(Newcomer& newcomer) const {
  while (newcomer.have < sizeof(Greeting)) {
    auto* const at = reinterpret_cast<char*>(&newcomer.heard) + newcomer.have;
    const ssize_t got = recv(newcomer.socket.get(), at, sizeof(Greeting) - newcomer.have, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Outcome::kWait;
    if (got < 0) newcomer.error = errno;  // the socket does not tell it twice
    if (got <= 0) return Outcome::kRefused;
    newcomer.have += static_cast<std::size_t>(got);
  }
  const Greeting& heard = newcomer.heard;
  const bool expected = newcomer.called ? heard.magic == kAnswer && heard.member == *newcomer.called
                                        : heard.magic == kCall && may_come(heard.member);
  if (!expected) return Outcome::kRefused;
  return same(heard.secret, own_keys_ ? keys_[heard.member].hears : secret_) ? Outcome::kProved : Outcome::kRefused;
}

Meeting::Outcome Meeting::step(Newcomer& newcomer) {
  if (newcomer.called && !newcomer.said) {
    pollfd entry{newcomer.socket.get(), POLLOUT, 0};
    if (poll(&entry, 1, 0) == 0) return Outcome::kWait;
    newcomer.error = error_of(newcomer.socket);  // a send would report it, and clear it
    if (newcomer.error != 0) return Outcome::kRefused;
    if (!say(newcomer, kCall, *newcomer.called)) return Outcome::kRefused;
  }
  const Outcome outcome = hear(newcomer);
  if (outcome != Outcome::kProved || newcomer.called) return outcome;
  return say(newcomer, kAnswer, static_cast<std::uint32_t>(newcomer.heard.member)) ? outcome : Outcome::kRefused;
}

Result<void> Meeting::turn() {
  if (auto ok = take_callers(); !ok) return ok;
  if (auto ok = make_due_calls(); !ok) return ok;
  for (auto it = newcomers_.begin(); it != newcomers_.end();) {
    const Outcome outcome = step(*it);
    const bool late = !it->called && MonotonicClock::now() - it->since_us > kStrangerUs;
    if (outcome == Outcome::kWait && !late) {
      ++it;
      continue;
    }
    Newcomer newcomer = std::move(*it);
    it = newcomers_.erase(it);
    if (outcome == Outcome::kProved) {
      sockets_[newcomer.heard.member] = std::move(newcomer.socket);
    } else if (newcomer.called) {
      if (auto ok = call_again(newcomer); !ok) return ok;
    } else {
      ++(outcome == Outcome::kRefused ? strangers.wrong : strangers.late);
    }
  }
  return {};
}

std::string Meeting::missing() const {
  std::string names;
  for (std::uint32_t peer = 0; peer < group_.nodes; ++peer) {
    if (peer == group_.node || sockets_[peer].valid()) continue;
    names += (names.empty() ? "" : ", ") + name_of(peer);
    if (const auto it = unreached_.find(peer); it != unreached_.end())
      names += std::string(" (") + std::strerror(it->second.error) + ")";
  }
  return names;
}

// Until each member is connected.
Result<void> Meeting::meet_all() {
  while (true) {
    if (auto ok = turn(); !ok) return ok;
    const std::string names = missing();
    if (names.empty()) return {};
    const TimeUs left_us = group_.left_us();
    if (left_us <= 0)
      return fail(ErrorKind::kTimeout, names + " came, but did not connect over " + spec_.interface + " in time",
                  "check that a firewall lets TCP through between the nodes' " + spec_.interface);
    if (group_.store->ended()) return fail(ErrorKind::kLost, "the job has ended while the link opened");
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    for (const Newcomer& newcomer : newcomers_)
      entries.push_back(
          {newcomer.socket.get(), static_cast<short>(newcomer.called && !newcomer.said ? POLLOUT : POLLIN), 0});
    poll(entries.data(), entries.size(), static_cast<int>(std::min(left_us, Store::kLookUs) / 1000 + 1));
  }
}

Result<PeerConnections> Meeting::hold(std::string_view topic) {
  if (auto ok = listen(); !ok) return tl::unexpected(ok.error());
  if (auto ok = read_invitations(topic); !ok) return tl::unexpected(ok.error());
  for (std::uint32_t peer = 0; peer < group_.node; ++peer)
    if (auto ok = call(peer); !ok) return tl::unexpected(ok.error());
  if (auto ok = meet_all(); !ok) return tl::unexpected(ok.error());
  const int on = 1;
  for (const Descriptor& socket : sockets_)
    if (socket.valid()) setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (own_keys_) return encrypt();
  return PeerConnections{nullptr, std::move(sockets_)};
}

Result<PeerConnections> Meeting::encrypt() {
  std::vector<EncryptedConnection::Wire> wires;
  for (std::uint32_t peer = 0; peer < group_.nodes; ++peer)
    if (peer != group_.node) wires.push_back({peer, std::move(sockets_[peer]), keys_[peer]});
  auto encryption = EncryptedSockets::start(std::move(wires));
  if (!encryption) return tl::unexpected(encryption.error());
  PeerConnections connections{*std::move(encryption), std::vector<Descriptor>(group_.nodes)};
  for (std::uint32_t peer = 0; peer < group_.nodes; ++peer)
    connections.sockets[peer] = connections.encryption->take_plain(peer);
  return connections;
}

}  // namespace

int PeerConnections::wire(std::uint32_t peer) const {
  return encryption ? encryption->wire(peer) : sockets[peer].get();
}

std::string PeerConnections::failure_of(std::uint32_t peer) const {
  return encryption ? encryption->failure_of(peer) : std::string();
}

void PeerConnections::abandon() const {
  if (encryption) encryption->abandon();
}

StrangerCounts stranger_counts() { return {strangers.wrong, strangers.late, strangers.crowded_out}; }

Result<PeerConnections> connect_peers(const LinkSpec& spec, const LinkGroup& group, std::string_view topic) {
  return Meeting(spec, group).hold(topic);
}

}  // namespace deft::link
