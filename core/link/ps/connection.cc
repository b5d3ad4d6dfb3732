#include "core/link/ps/connection.h"

#include <algorithm>
#include <cstring>

#include "core/base/numbers.h"
#include "core/base/text.h"

namespace deft::link::ps_backend {
namespace {

constexpr std::int64_t kMaxMessageBytes = kMaxAnswerBytes + 1024;  // encrypted, an answer is a little longer
// More messages than these, which a link has not taken from its socket, wait on the server's side. A link never waits for so many results,
// and it also looks at the socket while it waits for none.
constexpr int kUnreadMessages = 64;
constexpr std::size_t kMostTextBytes = 4096;  // of a server's error
constexpr int kReconnectMs = 50;
constexpr int kReconnectMaxMs = 500;

std::uint16_t port_of(const std::string& address) {
  return parse_whole<std::uint16_t>(address.substr(address.rfind(':') + 1)).value_or(0);
}

void keep(void* /*data*/, void* /*hint*/) {}

}  // namespace

ServerConnection::ServerConnection(zmq::context_t& context, const CurveKey& key, std::string address,
                                   std::uint32_t index, TimeUs silence_us)
    : address_(std::move(address)),
      has_key_(!key.empty()),
      dealer_(context, zmq::socket_type::dealer),
      watch_(context, dealer_, "server-" + std::to_string(index), port_of(address_)) {
  const int silence_ms = static_cast<int>(std::max<TimeUs>(silence_us / 1000, 100));
  dealer_.set(zmq::sockopt::linger, 0);
  dealer_.set(zmq::sockopt::sndhwm, 0);
  dealer_.set(zmq::sockopt::rcvhwm, kUnreadMessages);
  dealer_.set(zmq::sockopt::maxmsgsize, kMaxMessageBytes);
  dealer_.set(zmq::sockopt::reconnect_ivl, kReconnectMs);
  dealer_.set(zmq::sockopt::reconnect_ivl_max, kReconnectMaxMs);
  dealer_.set(zmq::sockopt::heartbeat_ivl, std::max(silence_ms / 4, 25));
  dealer_.set(zmq::sockopt::heartbeat_timeout, silence_ms);
  key.guard_caller(dealer_);
  dealer_.connect("tcp://" + address_);
}

void ServerConnection::hello(const PsHeader& header, const Secret& secret, const std::string& link) {
  dealer_.send(zmq::buffer(&header, sizeof header), zmq::send_flags::sndmore);
  dealer_.send(zmq::buffer(with_text(secret, link)), zmq::send_flags::none);
}

void ServerConnection::push(PsHeader header, std::span<const std::byte> recipe, std::span<std::byte> data) {
  header.taken = told_ = taken_;
  header.recipe_bytes = static_cast<std::uint32_t>(recipe.size());
  zmq::message_t first(sizeof header + recipe.size());
  std::memcpy(first.data(), &header, sizeof header);
  std::ranges::copy(recipe, first.data<std::byte>() + sizeof header);
  dealer_.send(first, zmq::send_flags::sndmore);
  zmq::message_t payload;
  if (!data.empty()) payload.rebuild(data.data(), data.size(), keep, nullptr);
  dealer_.send(payload, zmq::send_flags::none);
  ++unanswered_;
}

void ServerConnection::report_taken() {
  const std::uint64_t untold = taken_ - told_;
  if (ended_ || untold < kAnswersAhead / 2 || untold + unanswered_ <= kAnswersAhead) return;
  PsHeader header;
  header.kind = Kind::kTaken;
  header.taken = told_ = taken_;
  dealer_.send(zmq::buffer(&header, sizeof header), zmq::send_flags::sndmore);
  dealer_.send(zmq::message_t(), zmq::send_flags::none);
}

// Without it the heartbeats of an idle link would look like a message that does not end, to either side.
void ServerConnection::ping(TimeUs now_us) {
  if (ended_ || now_us - pinged_us_ < kPingUs) return;
  pinged_us_ = now_us;
  const PsHeader header;
  dealer_.send(zmq::buffer(&header, sizeof header), zmq::send_flags::sndmore);
  dealer_.send(zmq::message_t(), zmq::send_flags::none);
}

std::optional<ServerConnection::Message> ServerConnection::receive() {
  zmq::message_t first, payload;
  for (int i = 0; i < kUnreadMessages && dealer_.recv(first, zmq::recv_flags::dontwait); ++i) {
    int frames = 1;
    for (; dealer_.get(zmq::sockopt::rcvmore); ++frames) {
      zmq::message_t frame;
      if (!dealer_.recv(frame, zmq::recv_flags::none)) break;
      payload = std::move(frame);
    }
    watch_.delivered(frames > 1 ? payload : first);
    const auto header = header_of(first);
    if (frames != 2 || !header) {
      ended_ = Error{ErrorKind::kViolation,
                     address_ + " is no parameter server: it sent what cannot be read",
                     "correct the address in DEFT_LINKS",
                     {}};
      return std::nullopt;
    }
    answered_ = true;
    if (header->kind == Kind::kResult) {  // also if it came just before the end
      if (unanswered_ > 0) --unanswered_;
      ++taken_;
      return Message{*header, std::move(payload)};
    }
    on_notice(*header, payload);
  }
  return std::nullopt;
}

void ServerConnection::on_notice(const PsHeader& header, const zmq::message_t& payload) {
  const auto* bytes = payload.data<std::uint8_t>();
  switch (header.kind) {
    case Kind::kPresent: present_.assign(bytes, bytes + std::min<std::size_t>(payload.size(), kMaxNodes)); return;
    case Kind::kWelcome: welcome_ = true; return;
    case Kind::kFailed:
      if (!ended_)
        ended_ = Error{
            error_kind_of(header.error), readable(payload.to_string_view(), kMostTextBytes), {}, "server " + address_};
      return;
    default: return;
  }
}

std::vector<std::uint32_t> ServerConnection::absent() const {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t node = 0; node < present_.size(); ++node)
    if (present_[node] == 0) nodes.push_back(node);
  return nodes;
}

void ServerConnection::refused() {
  if (ended_) return;
  ended_ = Error{ErrorKind::kMismatch,
                 "the parameter server " + address_ +
                     (has_key_ ? " has another key than this daemon, or none"
                               : " wants a key, and this daemon has none; or it is no parameter server"),
                 "start it and all daemons with the same --secret-file",
                 {}};
}

// The server's last messages are taken first: receive() must have been called after the event.
void ServerConnection::check_alive() {
  const ConnectionWatch::News news = watch_.take_news();
  if (news.refused) refused();
  if (news.endless && !ended_)
    ended_ = Error{ErrorKind::kViolation,
                   address_ + " is no parameter server: it sends a message without an end",
                   "correct the address in DEFT_LINKS",
                   {}};
  if (!news.lost || !answered_ || ended_) return;
  ended_ =
      Error{ErrorKind::kLost, "the parameter server " + address_ + " was lost", "see its log, and start it again", {}};
}

}  // namespace deft::link::ps_backend
