#include "daemon/server/worker_session.h"

#include <utility>

#include "core/ipc/wire.h"
#include "daemon/server/hello.h"
#include "daemon/server/job_commands.h"

namespace deft::daemon {
namespace {

ipc::Welcome welcome_message(const JobStart& start, std::uint64_t daemon_epoch) {
  ipc::Welcome message;
  message.daemon_epoch = daemon_epoch;
  message.node = start.node;
  message.nodes = start.nodes;
  message.world = static_cast<std::uint32_t>(start.node_of_rank.size());
  message.spin_us = static_cast<std::uint32_t>(start.spin_us);
  message.timeout_us = static_cast<std::uint64_t>(start.timeout_us);
  message.links = static_cast<std::uint32_t>(start.links.in_workers.size());
  message.daemon_links = start.links.in_daemons;
  return message;
}

}  // namespace

WorkerSession::WorkerSession(Reactor& reactor, const Means& means, SessionHandler& handler, ipc::MessageSocket socket,
                             std::uint64_t daemon_epoch)
    : reactor_(reactor),
      means_(means),
      handler_(handler),
      daemon_epoch_(daemon_epoch),
      connection_(reactor, std::move(socket), means.account,
                  {[this](const ipc::Packet& packet) {
                     if (auto ok = dispatch(packet); !ok) drop(ok.error());
                   },
                   [this](const Error& error) { drop(error); },
                   [this] {
                     close({ErrorKind::kLost, describe() + " died", "look at its own output for the reason", {}});
                   }}),
      memory_(reactor, means.budget, means.account),
      requests_(*this, connection_, memory_, *means.account) {}

void WorkerSession::serve(const std::weak_ptr<JobPort>& job) {
  job_ = job;
  requests_.serve(job);
}

std::string WorkerSession::describe() const {
  return (attached_ ? "rank " + std::to_string(hello_.rank) : std::string("a client")) + " (pid " +
         std::to_string(peer().pid) + ")";
}

void WorkerSession::end(const Error& reason, bool clean) {
  if (std::exchange(closed_, true)) return;
  connection_.stop();
  if (rings_) rings_->stop();
  run_for(job_, "the end of a worker", [&] {
    if (const auto job = job_.lock()) job->worker_ended(*this, clean, reason);
  });
  handler_.session_ended(*this, reason);
}

void WorkerSession::drop(const Error& error) {
  if (closed_) return;
  send_error(error, 0);
  close(error.in(describe()));
}

Result<void> WorkerSession::dispatch(const ipc::Packet& packet) {
  const auto header = ipc::decode_header(packet.bytes);
  if (!header) return tl::unexpected(header.error());
  switch (header->kind) {
    case ipc::MessageKind::kHello: return on_hello(packet);
    case ipc::MessageKind::kStatus: return send_status();
    case ipc::MessageKind::kChangeSettings:
    case ipc::MessageKind::kTrace: return on_command(packet);
    case ipc::MessageKind::kGoodbye:
      if (rings_) rings_->take_rest();  // others may need its last gradients
      end({}, true);
      return {};
    case ipc::MessageKind::kText:
      if (attached_) return {};  // a worker looks whether the daemon reads
      break;
    default: break;
  }
  if (!rings_) return fail(ErrorKind::kViolation, "a request before the job runs");
  Result<void> result;
  run_for(job_, "a worker's request", [&] { result = requests_.handle(packet, header->kind); });
  return result;
}

Result<void> WorkerSession::on_hello(const ipc::Packet& packet) {
  if (attached_) return fail(ErrorKind::kViolation, "it attached twice");
  auto hello = read_hello(packet);
  if (!hello) return tl::unexpected(hello.error());
  if (auto ok = means_.account->take(Quota::kDescriptors, kWorkerDescriptors); !ok) return ok;
  hello_ = std::move(*hello);
  attached_ = true;
  if (auto ok = connection_.watch_process(); !ok) return ok;
  if (!closed_) handler_.session_attached(*this);
  return {};
}

void WorkerSession::make_rings(RingsMade made) {
  memory_.make_rings([this, weak = weak_from_this(), made = std::move(made)](Result<void> rings) {
    const auto alive = weak.lock();
    if (alive && !closed_) made(std::move(rings));
  });
}

Result<void> WorkerSession::welcome(const JobStart& start) {
  static_assert(ipc::kMaxWorld * sizeof(std::uint32_t) < ipc::kMaxMessageBytes - sizeof(ipc::Welcome));
  auto rings = RingPump::open(reactor_, memory_.rings(), {daemon_epoch_, start.heartbeat_us},
                              {[this](const shm::Record& record) {
                                 run_for(job_, "a worker's record", [&] {
                                   if (const auto job = job_.lock()) job->record(*this, record);
                                 });
                               },
                               [this](const Error& error) { drop(error); }, [this] { connection_.wake(); }});
  if (!rings) return tl::unexpected(rings.error());
  rings_ = std::move(*rings);
  const auto message = ipc::encode(welcome_message(start, daemon_epoch_), ipc::MessageKind::kWelcome,
                                   std::span<const std::string_view>{}, std::as_bytes(std::span(start.node_of_rank)));
  if (auto ok = connection_.send(message, rings_->descriptors()); !ok) return ok;
  for (const WorkerLink& link : start.links.in_workers) {
    ipc::LinkMessage announced;
    announced.link = link.number;
    announced.encrypts = link.encrypts ? 1 : 0;
    const auto bytes = ipc::encode(announced, ipc::MessageKind::kLink,
                                   {link.spec.backend, link.spec.interface, link.spec.address, link.prefix});
    if (auto ok = connection_.send(bytes); !ok) return ok;
  }
  return {};
}

void WorkerSession::grant_arena(std::uint32_t group, std::uint64_t bytes, std::uint32_t buckets, ArenaGranted granted) {
  ipc::Declared message;
  message.group = group;
  message.buckets = buckets;
  message.arena_bytes = bytes;
  const auto made = [this, weak = weak_from_this(), message, granted = std::move(granted)](auto arena) {
    const auto alive = weak.lock();
    if (!alive || closed_) return;
    if (arena) {
      auto sent = connection_.send_in_turn(ipc::encode(message, ipc::MessageKind::kDeclared), *arena);
      if (!sent) arena = tl::unexpected(sent.error());
    }
    granted(std::move(arena));
  };
  memory_.make_arena(group, bytes, made);
}

void WorkerSession::complete(const shm::Record& record) {
  if (rings_) rings_->complete(record);
  if (record.kind() == shm::RecordKind::kOperationDone) requests_.done(record.as<shm::OperationDoneRecord>().operation);
  if (record.kind() == shm::RecordKind::kReleased) requests_.released(record.as<shm::ReleasedRecord>().group);
}

void WorkerSession::send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value) {
  requests_.store_answered();
  ipc::StoreItem message;
  message.request = request;
  const std::string_view texts[] = {key};
  if (auto ok = connection_.send_in_turn(ipc::encode(message, ipc::MessageKind::kStoreValue, texts, value)); !ok)
    close(ok.error().in(describe()));
}

Result<void> WorkerSession::on_command(const ipc::Packet& packet) {
  if (attached_) return fail(ErrorKind::kViolation, "a worker wants to command a job");
  return answer_command(packet, peer().uid, handler_, [this, weak = weak_from_this()](std::vector<std::byte> answer) {
    const auto alive = weak.lock();
    if (!alive || closed_) return;
    if (auto ok = connection_.send(answer); !ok) drop(ok.error());
  });
}

Result<void> WorkerSession::send_status() {
  name_callback("a status");
  const std::string text = handler_.session_status(peer().uid);
  std::deque<std::vector<std::byte>> packets;
  for (std::size_t at = 0; at == 0 || at < text.size(); at += ipc::kMaxTextBytes) {
    ipc::Text message;
    message.last = at + ipc::kMaxTextBytes >= text.size() ? 1 : 0;
    const std::string_view piece = std::string_view(text).substr(at, ipc::kMaxTextBytes);
    packets.push_back(ipc::encode(message, ipc::MessageKind::kText, {piece}));
  }
  return connection_.send_all(std::move(packets));
}

}  // namespace deft::daemon
