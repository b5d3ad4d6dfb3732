#include "daemon/server/session.h"

#include <glog/logging.h>

#include <utility>

#include "core/base/text.h"
#include "core/ipc/wire.h"
#include "daemon/server/hello.h"

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

Session::Session(Reactor& reactor, MemoryBudget& budget, SessionHandler& handler, ipc::MessageSocket socket,
                 std::uint64_t daemon_epoch)
    : reactor_(reactor),
      budget_(budget),
      handler_(handler),
      daemon_epoch_(daemon_epoch),
      channel_(reactor, std::move(socket),
               {[this](const ipc::Packet& packet) { on_packet(packet); },
                [this](const Error& error) { close(error.in(describe())); },
                [this] {
                  close({ErrorKind::kLost, describe() + " died", "look at its own output for the reason", {}});
                }}),
      memory_(budget),
      requests_(*this, channel_, memory_) {}

void Session::serve(const std::weak_ptr<JobPort>& job) {
  job_ = job;
  requests_.serve(job);
}

std::string Session::describe() const {
  return (attached_ ? "rank " + std::to_string(hello_.rank) : std::string("a client")) + " (pid " +
         std::to_string(peer().pid) + ")";
}

void Session::end(const Error& reason, bool clean) {
  if (std::exchange(closed_, true)) return;
  channel_.stop();
  if (rings_) rings_->stop();
  run_for(job_, "the end of a worker", [&] {
    if (const auto job = job_.lock()) job->worker_ended(*this, clean, reason);
  });
  handler_.session_ended(*this, reason);
}

void Session::drop(const Error& error) {
  if (closed_) return;
  LOG(WARNING) << describe() << " is dropped: " << error.message();
  send_error(error, 0);
  close(error.in(describe()));
}

void Session::on_packet(const ipc::Packet& packet) {
  if (auto ok = dispatch(packet); !ok) drop(ok.error());
}

Result<void> Session::dispatch(const ipc::Packet& packet) {
  const auto header = ipc::decode_header(packet.bytes);
  if (!header) return tl::unexpected(header.error());
  switch (header->kind) {
    case ipc::MessageKind::kHello: return on_hello(packet);
    case ipc::MessageKind::kStatus: return send_status();
    case ipc::MessageKind::kSetPolicy: return on_set_policy(packet);
    case ipc::MessageKind::kGoodbye: end({}, true); return {};
    default: break;
  }
  if (!rings_) return fail(ErrorKind::kViolation, "a request before the job runs");
  Result<void> result;
  run_for(job_, "a worker's request", [&] { result = requests_.handle(packet, header->kind); });
  return result;
}

Result<void> Session::on_hello(const ipc::Packet& packet) {
  if (attached_) return fail(ErrorKind::kViolation, "it attached twice");
  auto hello = read_hello(packet);
  if (!hello) return tl::unexpected(hello.error());
  hello_ = std::move(*hello);
  attached_ = true;
  if (auto ok = channel_.watch_process(); !ok) return ok;
  if (!closed_) handler_.session_attached(*this);
  return {};
}

Result<void> Session::welcome(const JobStart& start) {
  auto rings = RingPump::open(reactor_, budget_, daemon_epoch_,
                              {[this](const shm::Record& record) {
                                 run_for(job_, "a worker's record", [&] {
                                   if (const auto job = job_.lock()) job->record(*this, record);
                                 });
                               },
                               [this](const Error& error) { drop(error); }});
  if (!rings) return tl::unexpected(rings.error());
  rings_ = std::move(*rings);
  const auto message = ipc::encode(welcome_message(start, daemon_epoch_), ipc::MessageKind::kWelcome,
                                   std::span<const std::string_view>{}, std::as_bytes(std::span(start.node_of_rank)));
  if (auto ok = channel_.send(message, rings_->descriptors()); !ok) return ok;
  for (const WorkerLink& link : start.links.in_workers) {
    ipc::LinkMessage announced;
    announced.link = link.number;
    const auto bytes = ipc::encode(announced, ipc::MessageKind::kLink,
                                   {link.spec.backend, link.spec.interface, link.spec.address, link.prefix});
    if (auto ok = channel_.send(bytes); !ok) return ok;
  }
  return {};
}

Result<std::shared_ptr<shm::Segment>> Session::grant_arena(std::uint32_t group, std::uint64_t bytes,
                                                           std::uint32_t buckets) {
  auto arena = memory_.make_arena(group, bytes);
  if (!arena) return arena;
  ipc::Declared message;
  message.group = group;
  message.buckets = buckets;
  message.arena_bytes = bytes;
  const std::array<int, 1> descriptors{(*arena)->descriptor()};
  if (auto ok = channel_.send(ipc::encode(message, ipc::MessageKind::kDeclared), descriptors); !ok)
    return tl::unexpected(ok.error());
  return arena;
}

void Session::complete(const shm::Record& record) {
  if (rings_) rings_->complete(record);
}

void Session::send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value) {
  ipc::StoreItem message;
  message.request = request;
  const std::string_view texts[] = {key};
  if (auto ok = channel_.send(ipc::encode(message, ipc::MessageKind::kStoreValue, texts, value)); !ok)
    close(ok.error().in(describe()));
}

// The kernel has told whose the client is.
Result<void> Session::on_set_policy(const ipc::Packet& packet) {
  if (attached_) return fail(ErrorKind::kViolation, "a worker wants another policy for a job");
  const auto message = ipc::decode<ipc::SetPolicy>(packet.bytes, ipc::MessageKind::kSetPolicy, 2);
  if (!message) return tl::unexpected(message.error());
  if (auto ok = check_name(message->texts[0], ipc::kMaxJobNameBytes, "the job's name"); !ok) return ok;
  if (auto ok = check_name(message->texts[1], ipc::kMaxJobNameBytes, "the policy"); !ok) return ok;
  if (auto ok = handler_.set_policy(peer().uid, message->texts[0], message->texts[1]); !ok) {
    send_error(ok.error(), 0);
    return {};
  }
  ipc::Text done;
  done.last = 1;
  return channel_.send(ipc::encode(done, ipc::MessageKind::kText, {"from the next step on"}));
}

Result<void> Session::send_status() {
  const std::string text = handler_.session_status();
  std::deque<std::vector<std::byte>> packets;
  for (std::size_t at = 0; at == 0 || at < text.size(); at += ipc::kMaxTextBytes) {
    ipc::Text message;
    message.last = at + ipc::kMaxTextBytes >= text.size() ? 1 : 0;
    const std::string_view piece = std::string_view(text).substr(at, ipc::kMaxTextBytes);
    packets.push_back(ipc::encode(message, ipc::MessageKind::kText, {piece}));
  }
  return channel_.send_all(std::move(packets));
}

}  // namespace deft::daemon
