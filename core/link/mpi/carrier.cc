#include "core/link/mpi/carrier.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace deft::link::mpi_backend {
namespace {

constexpr std::uint32_t kFirstTag = 16;  // the MPI process has the lower ones for itself
constexpr TimeUs kEndingUs = 2'000'000;  // how long to wait for the word how the MPI process ended

}  // namespace

Carrier::Carrier(std::unique_ptr<AgentProcess> helper, std::uint32_t node, std::uint32_t nodes, std::size_t slot_bytes,
                 std::uint32_t tag_limit)
    : node_(node), slot_bytes_(slot_bytes), tag_limit_(tag_limit), helper_(std::move(helper)), peers_(nodes) {}

void Carrier::begin(std::uint64_t operation_hash) {
  tag_ = kFirstTag + static_cast<std::uint32_t>(operation_hash % (tag_limit_ - kFirstTag));
}

std::byte* Carrier::slot(std::uint32_t peer, bool incoming, std::uint64_t message) const {
  const auto index = static_cast<std::uint32_t>(message % kSlots);
  return helper_->slots() + slot_offset(peer, incoming, index, slot_bytes_);
}

void Carrier::command(CommandKind kind, std::uint32_t peer, std::uint64_t message, std::size_t bytes) {
  commands_.push_back({.kind = kind,
                       .slot = static_cast<std::uint8_t>(message % kSlots),
                       .peer = static_cast<std::uint16_t>(peer),
                       .bytes = static_cast<std::uint32_t>(bytes),
                       .tag = tag_});
}

bool Carrier::can_expect(std::uint32_t peer) const {
  const Stream& in = peers_[peer].in;
  return in.begun - in.consumed < kSlots;
}

bool Carrier::expect(std::uint32_t peer, std::size_t bytes) {
  Stream& in = peers_[peer].in;
  in.slots[in.begun % kSlots] = Slot::kBusy;
  command(CommandKind::kReceive, peer, in.begun++, bytes);
  return commands_.size() < kMaxRecords || push_commands();
}

const std::byte* Carrier::receive(std::uint32_t peer) {
  Stream& in = peers_[peer].in;
  while (in.slots[in.consumed % kSlots] != Slot::kArrived) {
    if (!await_news()) return nullptr;
  }
  in.slots[in.consumed % kSlots] = Slot::kFree;
  return slot(peer, true, in.consumed++);
}

bool Carrier::send(std::uint32_t peer, const std::byte* data, std::size_t bytes, Pace pace) {
  Stream& out = peers_[peer].out;
  while (out.slots[out.begun % kSlots] != Slot::kFree) {
    if (!await_news()) return false;
  }
  std::memcpy(slot(peer, false, out.begun), data, bytes);
  out.slots[out.begun % kSlots] = Slot::kBusy;
  ++unsent_;
  command(pace == Pace::kFree ? CommandKind::kSend : CommandKind::kSendMatched, peer, out.begun++, bytes);
  return push_commands();
}

bool Carrier::flush() {
  while (unsent_ > 0) {
    if (!await_news()) return false;
  }
  return true;
}

bool Carrier::push_commands() {
  if (commands_.empty()) return true;
  const ssize_t sent =
      ::send(helper_->data_socket(), commands_.data(), commands_.size() * sizeof(Command), MSG_NOSIGNAL);
  commands_.clear();
  return sent >= 0 || helper_ended();
}

bool Carrier::await_news() {
  if (!push_commands()) return false;
  std::array<News, kMaxRecords> news;
  ssize_t bytes = 0;
  do {
    bytes = recv(helper_->data_socket(), news.data(), sizeof news, 0);
  } while (bytes < 0 && errno == EINTR);
  if (bytes <= 0) return helper_ended();
  for (std::size_t i = 0; i < static_cast<std::size_t>(bytes) / sizeof(News); ++i) {
    if (!take(news[i])) return false;
  }
  return true;
}

bool Carrier::take(const News& news) {
  switch (news.kind) {
    case NewsKind::kSent:
      peers_[news.peer].out.slots[news.slot] = Slot::kFree;
      --unsent_;
      return true;
    case NewsKind::kReceived: peers_[news.peer].in.slots[news.slot] = Slot::kArrived; return true;
    case NewsKind::kLost: {
      const std::string node = "node " + std::to_string(news.value);
      return fail_with(ErrorKind::kLost, node + " has left the link", "see the log of " + node);
    }
    case NewsKind::kFailed: {
      const std::string node = "node " + std::to_string(news.peer);
      return fail_with(ErrorKind::kLost, "the connection to " + node + " failed: " + helper_->last_words(),
                       "see the log of " + node);
    }
    case NewsKind::kGreeted:
    case NewsKind::kReady: return true;
  }
  return true;
}

// The data socket has ended: by abort(), or because the MPI process is gone. Always false.
bool Carrier::helper_ended() {
  if (failure()) return false;
  std::string how = "ended";
  const TimeUs until = MonotonicClock::now() + kEndingUs;
  while (const auto message = helper_->hear(until)) {
    if (message->kind == ControlKind::kEnded) how = message->content;
  }
  const std::string words = helper_->last_words();
  return fail_with(ErrorKind::kLost,
                   "the MPI process of node " + std::to_string(node_) + " " + how + (words.empty() ? "" : ": " + words),
                   "MPI ends its processes when something is wrong on any node: see the daemons' logs");
}

bool Carrier::fail_with(ErrorKind kind, std::string what, std::string fix) {
  abort({kind, std::move(what), std::move(fix), {}});
  return false;
}

void Carrier::abort(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!failed_) failed_ = reason;
  shutdown(helper_->data_socket(), SHUT_RDWR);
}

std::optional<Error> Carrier::failure() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace deft::link::mpi_backend
