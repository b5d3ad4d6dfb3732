#include "tests/fuzz_links/hostile_member.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/link/encryption/records.h"

namespace deft::fuzz {
namespace {

constexpr std::uint64_t kCall = 0x314c4c4143544645, kAnswer = 0x31525753414f4544;  // core/link/peer_sockets.cc
constexpr std::uint64_t kFrame = 0x5043544b524f5731;                               // core/link/tcp/transport.cc
constexpr std::size_t kMostConnections = 16;
constexpr std::size_t kMostFrames = 8;
constexpr int kCallMs = 1'000;

void require(bool holds, const char* what) {
  if (holds) return;
  std::perror(what);
  std::abort();
}

void reset(Descriptor& socket) {
  const linger at_once{1, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  socket.reset();
}

}  // namespace

HostileMember::Plan HostileMember::Plan::take(Bytes& bytes) {
  const auto choice = bytes.take<std::uint8_t>();
  Plan plan;
  plan.tested_calls = (choice & 1U) != 0;
  plan.encrypts = (choice & 2U) != 0;
  plan.request = (choice >> 2U) & 3U;
  plan.gives_up = (choice & 16U) != 0;
  plan.publishes_text = (choice & 32U) != 0;
  return plan;
}

HostileMember::HostileMember(const Plan& plan, Bytes& bytes)
    : plan_(plan),
      bytes_(bytes),
      acts_(bytes.take<std::uint8_t>() % 16U),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  require(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "bind");
  require(listen(listener_.get(), 64) == 0, "listen");
  secret_.fill(std::byte{7});
  if (plan_.encrypts) key_pair_ = link::KeyPair::make().value();
}

link::LinkGroup HostileMember::group(const std::shared_ptr<HostileMember>& hostile) {
  link::LinkGroup group;
  group.node = hostile->plan_.tested_calls ? 1 : 0;
  group.nodes = 2;
  group.prefix = "fuzz";
  group.store = hostile;
  group.connect_deadline_us =
      MonotonicClock::now() + 60'000'000;  // never reached: ended() is true when there are no acts
  group.encrypts = hostile->plan_.encrypts;
  return group;
}

Result<void> HostileMember::set(const std::string& key, std::span<const std::byte> value) {
  const auto parts = link::split_text(value);
  require(parts.has_value(), "the invitation of the member under test");
  its_secret_ = parts->secret;
  const std::size_t end = std::min(parts->text.find('\n'), parts->text.size());
  its_address_ = link::from_text(std::as_bytes(std::span(parts->text).first(end))).value();
  if (!key_pair_) return {};
  const auto its_key = link::PublicKey::parse(std::string_view(parts->text).substr(end + 1));
  require(its_key.has_value(), "the key of the member under test");
  // Both members make it in the same way: the key under which the calling member publishes, who answers, and both secrets.
  std::string about = key.substr(0, key.rfind('/')) + "/1/0";
  for (const link::Secret& secret :
       {plan_.tested_calls ? its_secret_ : secret_, plan_.tested_calls ? secret_ : its_secret_})
    for (const std::byte byte : secret) about += static_cast<char>(byte);
  keys_ = key_pair_->agree(*its_key, {.calls = !plan_.tested_calls, .about = about}).value();
  return {};
}

std::vector<std::byte> HostileMember::invitation() {
  if (plan_.publishes_text) return bytes_.take_some(bytes_.take<std::uint8_t>());
  std::string text = link::to_text("127.0.0.1", link::port_of(listener_.get()).value());
  if (key_pair_) text += '\n' + key_pair_->public_key().text();
  return link::with_text(secret_, text);
}

Result<std::vector<std::vector<std::byte>>> HostileMember::get(std::span<const std::string> keys,
                                                               TimeUs /*deadline_us*/) {
  require(keys.size() == 2, "the keys of two members");
  std::vector<std::vector<std::byte>> values(2);
  const std::size_t tested = plan_.tested_calls ? 1 : 0;
  values[1 - tested] = invitation();
  std::string own = link::to_text("127.0.0.1", 1);  // it does not look at its own address
  if (key_pair_) own += '\n' + key_pair_->public_key().text();
  values[tested] = link::with_text(its_secret_, own);
  return values;
}

bool HostileMember::ended() const { return !const_cast<HostileMember*>(this)->act(); }

bool HostileMember::act() {
  if (acts_ > 0) {
    --acts_;
    return do_next();
  }
  if (plan_.gives_up || greeted_at_last_) return false;
  greeted_at_last_ = true;
  greet_at_last();
  return true;
}

bool HostileMember::do_next() {
  const auto choice = bytes_.take<std::uint8_t>();
  Connection* const connection = chosen(choice);
  switch (choice % 8) {
    case 0: knock(); break;
    case 1: take_call(); break;
    case 2:
      if (connection != nullptr) greet(*connection, 0, false);
      break;
    case 3:
      if (connection != nullptr) greet(*connection, 0, true);
      break;
    case 4:
      if (connection != nullptr) greet(*connection, 1U + choice / 64U, false);
      break;
    case 5: {
      const auto bytes = bytes_.take_some(bytes_.take<std::uint8_t>());
      if (connection != nullptr && say(*connection, bytes) && !bytes.empty()) connection->has_spoken = true;
      break;
    }
    case 6:
      if (connection != nullptr) reset(connection->socket);
      break;
    default: break;
  }
  return true;
}

void HostileMember::hang_up() {
  for (Connection& connection : connections_) reset(connection.socket);
}

// So that what comes behind the greeting is tried, too. A member that calls has one call open at a time.
void HostileMember::greet_at_last() {
  plan_.tested_calls ? take_call() : knock();
  for (Connection& connection : connections_)
    if (connection.socket.valid() && !connection.has_spoken) greet(connection, 0, false);
}

void HostileMember::knock() {
  if (connections_.size() == kMostConnections) return;
  Descriptor made(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(made.get(), its_address_->get(), its_address_->bytes) != 0) return;
  connections_.emplace_back().socket = std::move(made);
}

void HostileMember::take_call() {
  pollfd entry{listener_.get(), POLLIN, 0};
  if (!plan_.tested_calls || connections_.size() == kMostConnections || poll(&entry, 1, kCallMs) != 1) return;
  Descriptor made(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (made.valid()) connections_.emplace_back().socket = std::move(made);
}

HostileMember::Greeting HostileMember::right_greeting() const {
  return {plan_.tested_calls ? kAnswer : kCall, plan_.tested_calls ? 0U : 1U, keys_ ? keys_->says : its_secret_};
}

void HostileMember::greet(Connection& connection, unsigned changes, bool in_pieces) {
  const Greeting right = right_greeting();
  Greeting greeting = right;
  bytes_.spoil(std::as_writable_bytes(std::span(&greeting, 1)), changes);
  const auto bytes = std::as_bytes(std::span(&greeting, 1));
  const bool is_right = !connection.has_spoken && std::memcmp(&greeting, &right, sizeof right) == 0;
  const std::size_t first = in_pieces ? bytes_.take<std::uint8_t>() % bytes.size() : bytes.size();
  connection.has_spoken = true;
  const bool said = say(connection, bytes.first(first)) && say(connection, bytes.subspan(first));
  if (is_right && said && !greeted_) greeted_ = static_cast<std::size_t>(&connection - connections_.data());
}

bool HostileMember::say(const Connection& connection, std::span<const std::byte> bytes) const {
  if (!connection.socket.valid()) return false;
  return send(connection.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

HostileMember::Connection* HostileMember::chosen(std::uint8_t choice) {
  if (connections_.empty()) return nullptr;
  return &connections_[choice / 8U % connections_.size()];
}

// Each frame begins with a byte: 0 good, 1 good but for some bytes, others: any bytes.
void HostileMember::send_frames(std::span<const std::uint64_t> tags, std::size_t bytes) {
  struct Frame {
    std::uint64_t magic = kFrame, number = 0, tag = 0, bytes = 0;
  };
  std::vector<std::byte> stream;
  for (std::uint64_t number = 0; number < kMostFrames && !bytes_.empty(); ++number) {
    const auto choice = bytes_.take<std::uint8_t>();
    Frame frame{kFrame, number, tags[number % tags.size()], bytes};
    if (choice % 4 == 1) bytes_.spoil(std::as_writable_bytes(std::span(&frame, 1)), 1U + choice / 64U);
    const auto head = std::as_bytes(std::span(&frame, 1));
    if (choice % 4 < 2) stream.insert(stream.end(), head.begin(), head.end());
    const auto body = bytes_.take_some(choice % 4 < 2 ? bytes : bytes_.take<std::uint8_t>());
    stream.insert(stream.end(), body.begin(), body.end());
  }
  const Connection& connection = connections_[*greeted_];
  if (!keys_) {
    say(connection, stream);
  } else {
    auto sealed = encrypted(stream);
    bytes_.spoil(sealed, bytes_.take<std::uint8_t>() % 4U);
    say(connection, sealed);
  }
  // The link may believe another connection that said the same.
  for (const Connection& each : connections_) shutdown(each.socket.get(), SHUT_WR);
}

std::vector<std::byte> HostileMember::encrypted(std::span<const std::byte> text) const {
  link::RecordWriter writer(keys_->sends);
  std::vector<std::byte> sealed;
  const auto take = [&] {
    sealed.insert(sealed.end(), writer.pending().begin(), writer.pending().end());
    writer.sent(writer.pending().size());
  };
  if (!text.empty()) {
    require(text.size() <= link::kRecordTextBytes, "a text of one record");
    std::memcpy(writer.places().front().iov_base, text.data(), text.size());
    writer.seal(text.size());
    take();
  }
  writer.seal_end();
  take();
  return sealed;
}

}  // namespace deft::fuzz
