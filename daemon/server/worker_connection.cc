#include "daemon/server/worker_connection.h"

#include <glog/logging.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string_view>

#include "core/ipc/wire.h"

namespace deft::daemon {
namespace {

constexpr int kPacketsARound = 128;
constexpr int kPacketsAfterDeath =
    1024;  // more than a socket's queue holds of a worker that lived; a forked child may send for ever
constexpr std::size_t kMaxErrorBytes = 2000;  // of each of the three texts

}  // namespace

WorkerConnection::WorkerConnection(Reactor& reactor, ipc::MessageSocket socket, std::shared_ptr<QuotaAccount> account,
                                   Events events)
    : reactor_(reactor), socket_(std::move(socket)), account_(std::move(account)), events_(std::move(events)) {
  if (const auto peer = socket_.peer()) peer_ = *peer;
}

// Messages that were never read may hold descriptors whose closing takes as long as the client likes. All others are closed here, so that
// they do not gather behind these.
WorkerConnection::~WorkerConnection() {
  stop();
  socket_.shut_down();
  if (socket_.discard_unread()) {
    socket_.close();
    return;
  }
  const auto close = [socket = std::make_shared<ipc::MessageSocket>(std::move(socket_)), held = std::move(account_)] {
    socket->close();
  };
  reactor_.offload(peer_.uid, close);
}

Result<void> WorkerConnection::start() {
  if (const auto peer = socket_.peer(); !peer) return tl::unexpected(peer.error());
  return reactor_.watch(socket_.descriptor(), EPOLLIN, [this](std::uint32_t events) { on_events(events); });
}

Result<void> WorkerConnection::watch_process() {
  if (peer_.pid <= 0) return {};  // another process namespace
  process_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer_.pid, 0)));
  if (!process_.valid()) return {};
  return reactor_.watch(process_.get(), EPOLLIN, [this](std::uint32_t) {
    read(kPacketsAfterDeath);  // a goodbye may still be unread
    if (!stopped_) events_.on_death();
  });
}

void WorkerConnection::stop() {
  if (stopped_) return;
  stopped_ = true;
  reactor_.unwatch(socket_.descriptor());
  if (process_.valid()) reactor_.unwatch(process_.get());
}

void WorkerConnection::read(int packets) {
  for (int i = 0; i < packets && !stopped_; ++i) {
    auto packet = socket_.try_receive();
    if (!packet) return events_.on_broken(packet.error());
    if (!packet->has_value()) return;
    if ((*packet)->bytes.empty()) return events_.on_death();
    events_.on_packet(**packet);
  }
}

void WorkerConnection::on_events(std::uint32_t events) {
  if ((events & EPOLLOUT) != 0)
    if (auto ok = flush(); !ok) return events_.on_broken(ok.error());
  if ((events & ~std::uint32_t{EPOLLOUT}) != 0) read(kPacketsARound);
}

Result<void> WorkerConnection::send_in_turn(std::vector<std::byte> packet, std::shared_ptr<const shm::Segment> memory) {
  Waiting message{std::move(packet), std::move(memory)};
  if (rest_.empty()) {
    const auto sent = try_send(message);
    if (!sent) return tl::unexpected(sent.error());
    if (*sent) return {};
  }
  message.charged = message.packet.size();
  if (auto ok = account_->take(Quota::kStoreBytes, message.charged); !ok) return ok;
  rest_.push_back(std::move(message));
  return rest_.size() == 1 ? flush() : Result<void>{};
}

Result<void> WorkerConnection::send_all(std::deque<std::vector<std::byte>> packets) {
  if (!rest_.empty()) return fail(ErrorKind::kViolation, "it asked again before it had read the answer");
  for (auto& packet : packets) rest_.push_back({std::move(packet), nullptr});
  return flush();
}

// A full queue is waited for by EPOLLOUT.
Result<void> WorkerConnection::flush() {
  while (!rest_.empty()) {
    const auto sent = try_send(rest_.front());
    if (!sent) return tl::unexpected(sent.error());
    if (!*sent) break;
    if (rest_.front().charged > 0) account_->give_back(Quota::kStoreBytes, rest_.front().charged);
    rest_.pop_front();
  }
  const std::uint32_t events = rest_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
  return reactor_.watch(socket_.descriptor(), events, [this](std::uint32_t got) { on_events(got); });
}

Result<bool> WorkerConnection::try_send(const Waiting& message) {
  if (!message.memory) return socket_.try_send(message.packet);
  const std::array<int, 1> descriptors{message.memory->descriptor()};
  return socket_.try_send(message.packet, descriptors);
}

Result<void> WorkerConnection::send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  return socket_.send(bytes, descriptors);
}

void WorkerConnection::wake() {
  static const auto kMessage = ipc::encode(ipc::Wake{}, ipc::MessageKind::kWake);
  static_cast<void>(send(kMessage));
}

void WorkerConnection::send_error(const Error& error, std::uint64_t operation) {
  ipc::ErrorMessage message;
  message.error_kind = static_cast<std::uint32_t>(error.kind);
  message.operation = operation;
  const auto cut = [](const std::string& text) { return std::string_view(text).substr(0, kMaxErrorBytes); };
  auto packet = ipc::encode(message, ipc::MessageKind::kError, {cut(error.what), cut(error.fix), cut(error.where)});
  const auto ok = operation == 0 ? send(packet) : send_in_turn(std::move(packet));
  LOG_IF(INFO, !ok) << "pid " << peer_.pid << " could not be told of an error: " << ok.error().message();
}

}  // namespace deft::daemon
