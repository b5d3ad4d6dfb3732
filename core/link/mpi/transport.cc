#include "core/link/mpi/transport.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace deft::link::mpi_backend {
namespace {

constexpr std::uint32_t kFirstTag = 16;  // the MPI process has the lower ones for itself
constexpr TimeUs kEndingUs = 2'000'000;  // how long to wait for the word how the MPI process ended

constexpr std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }

}  // namespace

Transport::Transport(std::unique_ptr<AgentProcess> helper, std::uint32_t node, std::uint32_t nodes,
                     std::size_t slot_bytes, std::uint32_t tag_limit)
    : node_(node), slot_bytes_(slot_bytes), tag_limit_(tag_limit), helper_(std::move(helper)), peers_(nodes) {}

std::uint32_t Transport::begin(std::span<const std::uint64_t> words) {
  std::uint64_t hash = ++operations_;
  for (const std::uint64_t word : words) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  const std::uint32_t tags = (tag_limit_ - kFirstTag) / kStreams;
  return kFirstTag + static_cast<std::uint32_t>(hash % tags) * kStreams;
}

std::byte* Transport::place(std::uint32_t peer, bool incoming, std::uint32_t slot) const {
  return helper_->slots() + slot_offset(peer, incoming, slot, slot_bytes_);
}

std::uint32_t Transport::slot_of(Stream stream, std::uint64_t message) {
  return static_cast<std::uint32_t>(stream) * kStreamSlots + static_cast<std::uint32_t>(message % kStreamSlots);
}

void Transport::command(CommandKind kind, std::uint32_t peer, std::uint32_t slot, std::uint32_t tag,
                        std::size_t bytes) {
  commands_.push_back({.kind = kind,
                       .slot = static_cast<std::uint8_t>(slot),
                       .peer = static_cast<std::uint16_t>(peer),
                       .bytes = static_cast<std::uint32_t>(bytes),
                       .tag = tag + slot / kStreamSlots});
}

bool Transport::can_expect(std::uint32_t peer, Stream stream) const {
  const Flow& in = peers_[peer].in[index(stream)];
  return in.begun - in.consumed < kStreamSlots;
}

bool Transport::expect(std::uint32_t peer, Stream stream, std::uint32_t tag, std::size_t bytes) {
  Flow& in = peers_[peer].in[index(stream)];
  in.slots[in.begun % kStreamSlots] = Slot::kBusy;
  command(CommandKind::kReceive, peer, slot_of(stream, in.begun++), tag, bytes);
  return commands_.size() < kMaxRecords || push_commands();
}

const std::byte* Transport::receive(std::uint32_t peer, Stream stream) {
  Flow& in = peers_[peer].in[index(stream)];
  Slot& slot = in.slots[in.consumed % kStreamSlots];
  while (slot != Slot::kArrived) {
    if (!await_news()) return nullptr;
  }
  slot = Slot::kFree;
  return place(peer, true, slot_of(stream, in.consumed++));
}

bool Transport::send(std::uint32_t peer, Stream stream, std::uint32_t tag, std::span<const std::byte> bytes,
                     Pace pace) {
  Flow& out = peers_[peer].out[index(stream)];
  Slot& slot = out.slots[out.begun % kStreamSlots];
  while (slot != Slot::kFree) {
    if (!await_news()) return false;
  }
  const std::uint32_t number = slot_of(stream, out.begun++);
  std::memcpy(place(peer, false, number), bytes.data(), bytes.size());
  slot = Slot::kBusy;
  command(pace == Pace::kFree ? CommandKind::kSend : CommandKind::kSendMatched, peer, number, tag, bytes.size());
  return push_commands();
}

std::uint64_t Transport::given(std::uint32_t peer, Stream stream) const {
  return peers_[peer].out[index(stream)].begun;
}

bool Transport::flush(std::uint32_t peer, Stream stream, std::uint64_t count) {
  const Flow& out = peers_[peer].out[index(stream)];
  const std::uint64_t oldest = out.begun - std::min<std::uint64_t>(out.begun, kStreamSlots);  // that has its slot still
  for (std::uint64_t message = oldest; message < count; ++message) {
    while (out.slots[message % kStreamSlots] == Slot::kBusy) {
      if (!await_news()) return false;
    }
  }
  return true;
}

bool Transport::push_commands() {
  if (commands_.empty()) return true;
  const ssize_t sent =
      ::send(helper_->data_socket(), commands_.data(), commands_.size() * sizeof(Command), MSG_NOSIGNAL);
  commands_.clear();
  return sent >= 0 || helper_ended();
}

bool Transport::await_news() {
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

bool Transport::take(const News& news) {
  switch (news.kind) {
    case NewsKind::kSent:
      peers_[news.peer].out[news.slot / kStreamSlots].slots[news.slot % kStreamSlots] = Slot::kFree;
      return true;
    case NewsKind::kReceived:
      peers_[news.peer].in[news.slot / kStreamSlots].slots[news.slot % kStreamSlots] = Slot::kArrived;
      return true;
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
bool Transport::helper_ended() {
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

bool Transport::fail_with(ErrorKind kind, std::string what, std::string fix) {
  abort({kind, std::move(what), std::move(fix), {}});
  return false;
}

void Transport::abort(const Error& reason) {
  const std::lock_guard lock(mutex_);
  if (!failed_) failed_ = reason;
  shutdown(helper_->data_socket(), SHUT_RDWR);
}

std::optional<Error> Transport::failure() {
  const std::lock_guard lock(mutex_);
  return failed_;
}

}  // namespace deft::link::mpi_backend
