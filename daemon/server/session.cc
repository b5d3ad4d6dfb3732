#include "daemon/server/session.h"

#include <glog/logging.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>

namespace deft::daemon {
namespace {

constexpr int kRecordsARound = 512;            // so that one busy worker does not keep the others waiting
constexpr std::size_t kMaxOverflow = 1 << 16;  // completions that a worker may leave unread beyond its ring
constexpr TimeUs kOverflowRetryUs = 1000;
constexpr std::size_t kMaxHeaps = 256;
constexpr std::uint32_t kMaxGroups = 1024;
constexpr std::size_t kMaxStoreItems = 65536;  // that a worker may set and ask for, each up to a message

Error ended_error(const std::string& who) {
  return {ErrorKind::kLost, who + " died", "look at its own output for the reason", {}};
}

}  // namespace

Session::Session(Reactor& reactor, MemoryBudget& budget, SessionHandler& handler, ipc::Channel channel,
                 std::uint64_t daemon_epoch)
    : reactor_(reactor),
      budget_(budget),
      handler_(handler),
      channel_(std::move(channel)),
      daemon_epoch_(daemon_epoch) {}

Session::~Session() {
  if (poller_ != 0) reactor_.remove_poller(poller_);
  reactor_.cancel(retry_);
  if (own_bell_) reactor_.unwatch(own_bell_->descriptor());
  if (process_.valid()) reactor_.unwatch(process_.get());
  if (channel_.open()) reactor_.unwatch(channel_.descriptor());
}

Result<void> Session::start() {
  auto peer = channel_.peer();
  if (!peer) return tl::unexpected(peer.error());
  peer_ = *peer;
  return reactor_.watch(channel_.descriptor(), EPOLLIN, [this](std::uint32_t) { on_socket(); });
}

// A forked child (a data loader) may hold the socket open after its parent's death; the pidfd tells the truth.
Result<void> Session::watch_process() {
  if (peer_.pid <= 0) return {};  // another process namespace: the socket's end must do
  process_ = shm::Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer_.pid, 0)));
  if (!process_.valid()) return {};
  return reactor_.watch(process_.get(), EPOLLIN, [this](std::uint32_t) {
    on_socket();  // a goodbye may still be unread
    if (!closed_) close(ended_error(describe()));
  });
}

std::string Session::describe() const {
  return (attached_ ? "rank " + std::to_string(attachment_.rank) : std::string("a client")) + " (pid " +
         std::to_string(peer_.pid) + ")";
}

void Session::end(const Error& reason, bool clean) {
  if (closed_) return;
  closed_ = true;
  reactor_.unwatch(channel_.descriptor());
  if (process_.valid()) reactor_.unwatch(process_.get());
  if (const auto job = job_.lock()) job->worker_ended(*this, clean, reason);
  handler_.session_ended(*this, reason);
}

void Session::on_socket() {
  while (!closed_) {
    auto packet = channel_.try_receive();
    if (!packet) return close(packet.error().in(describe()));
    if (!packet->has_value()) return;
    if ((*packet)->bytes.empty()) return close(ended_error(describe()));
    on_packet(**packet);
  }
}

void Session::on_packet(const ipc::Packet& packet) {
  Result<void> ok;
  try {
    ok = dispatch(packet);
  } catch (const std::bad_alloc&) {
    ok = fail(ErrorKind::kExhausted, "the daemon is out of memory");
  }
  if (ok || closed_) return;
  LOG(WARNING) << describe() << " is dropped: " << ok.error().message();
  send_error(ok.error(), 0);
  close(ok.error().in(describe()));
}

Result<void> Session::dispatch(const ipc::Packet& packet) {
  auto header = ipc::decode_header(packet.bytes);
  if (!header) return tl::unexpected(header.error());
  switch (header->kind) {
    case ipc::MessageKind::kHello: return on_hello(packet);
    case ipc::MessageKind::kStatus: return on_status();
    case ipc::MessageKind::kGoodbye: end({}, true); return {};
    default: break;
  }
  if (!control_) return fail(ErrorKind::kViolation, "a request before the job runs");
  switch (header->kind) {
    case ipc::MessageKind::kDeclare: return on_declare(packet);
    case ipc::MessageKind::kDeclareTensor: return on_declare_tensor(packet);
    case ipc::MessageKind::kHeap: return on_heap(packet);
    case ipc::MessageKind::kFreeHeap: return on_free_heap(packet);
    case ipc::MessageKind::kOperation: return on_operation(packet);
    case ipc::MessageKind::kError: return on_link_failed(packet);
    case ipc::MessageKind::kStoreSet: return on_store_set(packet);
    case ipc::MessageKind::kStoreGet: return on_store_get(packet);
    case ipc::MessageKind::kStatistics: return on_statistics(packet);
    default: return fail(ErrorKind::kViolation, "a message of an unknown kind");
  }
}

Result<void> Session::on_hello(const ipc::Packet& packet) {
  auto hello = ipc::decode<ipc::Hello>(packet.bytes, ipc::MessageKind::kHello, 4);
  if (!hello) return tl::unexpected(hello.error());
  if (attached_) return fail(ErrorKind::kViolation, "it attached twice");
  const auto& h = hello->fixed;
  attachment_ = {hello->texts[0], hello->texts[1], hello->texts[2], hello->texts[3],
                 h.rank,          h.world,         h.local_rank,    h.local_size};
  if (attachment_.job.empty() || attachment_.job.size() > ipc::kMaxNameBytes)
    return fail(ErrorKind::kInvalid, "the job's name is empty or too long", "set DEFT_JOB");
  if (h.world == 0 || h.rank >= h.world)
    return fail(ErrorKind::kInvalid,
                "rank " + std::to_string(h.rank) + " does not exist in a world of " + std::to_string(h.world),
                "check RANK and WORLD_SIZE");
  if (h.local_size == 0 || h.local_size > h.world || h.local_rank >= h.local_size)
    return fail(ErrorKind::kInvalid,
                "local rank " + std::to_string(h.local_rank) + " of " + std::to_string(h.local_size) +
                    " on a node does not fit a world of " + std::to_string(h.world),
                "check LOCAL_RANK and LOCAL_WORLD_SIZE");
  attached_ = true;
  if (auto ok = watch_process(); !ok) return ok;
  if (!closed_) handler_.session_attached(*this);
  return {};
}

Result<void> Session::welcome(const JobStart& start) {
  auto control = budget_.allocate("deft-rings", shm::kControlSegmentBytes);
  if (!control) return tl::unexpected(control.error());
  auto own = shm::Doorbell::create();
  auto worker = shm::Doorbell::create();
  if (!own) return tl::unexpected(own.error());
  if (!worker) return tl::unexpected(worker.error());
  control_ = std::move(*control);
  own_bell_ = std::move(*own);
  worker_bell_ = std::move(*worker);

  const auto rings = shm::ControlSegment::format(*control_, daemon_epoch_);
  submissions_.emplace(rings.submission(), rings.submission_records());
  completions_.emplace(rings.completion(), rings.completion_records());
  if (auto ok = reactor_.watch(own_bell_->descriptor(), EPOLLIN, [this](std::uint32_t) { own_bell_->drain(); }); !ok)
    return ok;
  poller_ = reactor_.add_poller([this](bool about_to_sleep) { return drain_ring(about_to_sleep); });

  ipc::Welcome message;
  message.daemon_epoch = daemon_epoch_;
  message.node = start.node;
  message.nodes = start.nodes;
  message.world = static_cast<std::uint32_t>(start.node_of_rank.size());
  message.spin_us = static_cast<std::uint32_t>(start.spin_us);
  message.timeout_us = static_cast<std::uint64_t>(start.timeout_us);
  message.links = static_cast<std::uint32_t>(start.links.in_workers.size());
  message.daemon_links = start.links.in_daemons;
  const std::array<int, 3> descriptors{control_->descriptor(), own_bell_->descriptor(), worker_bell_->descriptor()};
  if (auto ok = send(ipc::encode(message, ipc::MessageKind::kWelcome, std::span<const std::string_view>{},
                                 std::as_bytes(std::span(start.node_of_rank))),
                     descriptors);
      !ok)
    return ok;
  for (const WorkerLink& link : start.links.in_workers) {
    ipc::Link announced;
    announced.link = link.number;
    if (auto ok = send(ipc::encode(announced, ipc::MessageKind::kLink,
                                   {link.spec.backend, link.spec.interface, link.spec.address, link.prefix}));
        !ok)
      return ok;
  }
  return {};
}

Result<void> Session::on_declare(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Declare>(packet.bytes, ipc::MessageKind::kDeclare, 1);
  if (!message) return tl::unexpected(message.error());
  const auto& declare = message->fixed;
  const auto op = static_cast<model::ReduceOp>(declare.reduce_op);
  if (declaring_ || declare.group != next_group_ || declare.group >= kMaxGroups)
    return fail(ErrorKind::kViolation, "groups were declared out of order");
  if (!model::is_known(op) || declare.tensors == 0 || declare.tensors > model::kMaxTensors)
    return fail(ErrorKind::kInvalid, "a group of " + std::to_string(declare.tensors) + " tensors");
  declaring_.emplace();
  declaring_->group = next_group_++;
  declaring_->name = message->texts[0];
  declaring_->slots = declare.slots;
  declaring_->op = op;
  declaring_->expected = declare.tensors;
  return {};
}

Result<void> Session::on_declare_tensor(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::DeclareTensor>(packet.bytes, ipc::MessageKind::kDeclareTensor, 1);
  if (!message) return tl::unexpected(message.error());
  const auto& tensor = message->fixed;
  if (!declaring_ || tensor.group != declaring_->group || tensor.index != declaring_->tensors.size() ||
      tensor.dims > model::kMaxDims)
    return fail(ErrorKind::kViolation, "a tensor was declared out of order");
  model::TensorSpec spec;
  spec.name = message->texts[0];
  spec.dtype = static_cast<model::DType>(tensor.dtype);
  spec.shape.assign(tensor.shape, tensor.shape + tensor.dims);
  spec.forward_position = tensor.forward_position;
  declaring_->tensors.push_back(std::move(spec));
  if (declaring_->tensors.size() < declaring_->expected) return {};
  Declaration declaration = std::move(*declaring_);
  declaring_.reset();
  if (const auto job = job_.lock()) job->declare(*this, std::move(declaration));
  return {};
}

Result<std::shared_ptr<shm::Segment>> Session::grant_arena(std::uint32_t group, std::uint64_t bytes,
                                                           std::uint32_t buckets) {
  auto arena = budget_.allocate("deft-arena", bytes);
  if (!arena) return tl::unexpected(arena.error());
  arenas_.resize(std::max<std::size_t>(arenas_.size(), group + 1));
  arenas_[group] = std::move(*arena);
  ipc::Declared message;
  message.group = group;
  message.buckets = buckets;
  message.arena_bytes = bytes;
  const std::array<int, 1> descriptors{arenas_[group]->descriptor()};
  if (auto ok = send(ipc::encode(message, ipc::MessageKind::kDeclared), descriptors); !ok)
    return tl::unexpected(ok.error());
  return arenas_[group];
}

Result<void> Session::on_heap(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Heap>(packet.bytes, ipc::MessageKind::kHeap, 0);
  if (!message) return tl::unexpected(message.error());
  const auto& request = message->fixed;
  if (request.bytes == 0 || request.bytes > model::kMaxArenaBytes || heaps_.count(request.heap) != 0)
    return fail(ErrorKind::kViolation, "a heap that cannot be made");
  auto heap = heaps_.size() < kMaxHeaps
                  ? budget_.allocate("deft-heap", request.bytes)
                  : fail(ErrorKind::kExhausted, "this worker has " + std::to_string(kMaxHeaps) + " heaps already");
  if (!heap) {  // only what asked for it fails
    send_error(heap.error(), request.heap);
    return {};
  }
  ipc::Heap reply = request;
  const std::array<int, 1> descriptors{(*heap)->descriptor()};
  heaps_[request.heap] = std::move(*heap);
  return send(ipc::encode(reply, ipc::MessageKind::kHeapMade), descriptors);
}

Result<void> Session::on_free_heap(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Heap>(packet.bytes, ipc::MessageKind::kFreeHeap, 0);
  if (!message) return tl::unexpected(message.error());
  heaps_.erase(message->fixed.heap);
  return {};
}

Result<void> Session::on_operation(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Operation>(packet.bytes, ipc::MessageKind::kOperation, 1);
  if (!message) return tl::unexpected(message.error());
  const auto& call = message->fixed;
  OperationRequest request{message->texts[0], call, nullptr};
  if (call.collective < ipc::Collective::kAllReduce || call.collective > ipc::Collective::kBarrier)
    return fail(ErrorKind::kViolation, "an unknown collective");
  if (call.collective != ipc::Collective::kBarrier) {
    const std::size_t element = model::dtype_bytes(static_cast<model::DType>(call.dtype));
    const auto heap = heaps_.find(call.heap);
    if (element == 0 || !model::is_known(static_cast<model::ReduceOp>(call.reduce_op)) || heap == heaps_.end())
      return fail(ErrorKind::kViolation, "a collective of an unknown type on an unknown heap");
    const std::uint64_t elements = call.collective == ipc::Collective::kAllGather ? call.capacity : call.count;
    const std::uint64_t room = heap->second->bytes();
    if (call.count > elements || call.offset > room || elements > (room - call.offset) / element ||
        call.offset % element != 0)
      return fail(ErrorKind::kViolation, "a collective outside its heap");
    request.heap = heap->second;
  }
  if (const auto job = job_.lock()) job->request(*this, std::move(request));
  return {};
}

Result<void> Session::on_link_failed(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::ErrorMessage>(packet.bytes, ipc::MessageKind::kError, 3);
  if (!message) return tl::unexpected(message.error());
  const auto kind = message->fixed.error_kind;
  const bool known =
      kind >= static_cast<unsigned>(ErrorKind::kInvalid) && kind <= static_cast<unsigned>(ErrorKind::kInternal);
  if (const auto job = job_.lock())
    job->link_failed(*this, {known ? static_cast<ErrorKind>(kind) : ErrorKind::kInternal, message->texts[0],
                             message->texts[1], message->texts[2]});
  return {};
}

Result<void> Session::on_statistics(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Statistics>(packet.bytes, ipc::MessageKind::kStatistics, 0);
  if (!message) return tl::unexpected(message.error());
  if (message->fixed.group >= next_group_) return fail(ErrorKind::kViolation, "statistics of an undeclared group");
  if (const char* value = ipc::impossible_value(message->fixed))
    return fail(ErrorKind::kViolation, std::string(value) + " in its statistics is no finite number of 0 or more");
  if (const auto job = job_.lock()) job->take_statistics(*this, message->fixed);
  return {};
}

Result<void> Session::count_store_item() {
  if (++store_items_ <= kMaxStoreItems) return {};
  return fail(ErrorKind::kExhausted, "more than " + std::to_string(kMaxStoreItems) + " items of the job's store");
}

Result<void> Session::on_store_set(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::StoreItem>(packet.bytes, ipc::MessageKind::kStoreSet, 1);
  if (!message) return tl::unexpected(message.error());
  if (auto ok = count_store_item(); !ok) return ok;
  if (const auto job = job_.lock()) job->store_set(message->texts[0], message->tail);
  return {};
}

Result<void> Session::on_store_get(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::StoreItem>(packet.bytes, ipc::MessageKind::kStoreGet, 1);
  if (!message) return tl::unexpected(message.error());
  if (auto ok = count_store_item(); !ok) return ok;
  if (const auto job = job_.lock()) job->store_get(*this, message->fixed.request, message->texts[0]);
  return {};
}

void Session::send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value) {
  ipc::StoreItem message;
  message.request = request;
  const std::string_view texts[] = {key};
  if (auto ok = send(ipc::encode(message, ipc::MessageKind::kStoreValue, texts, value)); !ok)
    close(ok.error().in(describe()));
}

Result<void> Session::on_status() {
  const std::string text = handler_.session_status();
  for (std::size_t at = 0; at == 0 || at < text.size(); at += ipc::kMaxTextBytes) {
    ipc::Text message;
    message.last = at + ipc::kMaxTextBytes >= text.size() ? 1 : 0;
    const std::string_view piece = std::string_view(text).substr(at, ipc::kMaxTextBytes);
    if (auto ok = send(ipc::encode(message, ipc::MessageKind::kText, {piece})); !ok) return ok;
  }
  return {};
}

bool Session::drain_ring(bool about_to_sleep) {
  if (closed_) return false;
  bool any = flush_completions();
  if (!about_to_sleep) submissions_->woke();
  const auto job = job_.lock();
  shm::Record record;
  for (int i = 0; i < kRecordsARound && !closed_; ++i) {
    const shm::Pop popped = submissions_->pop(record);
    if (popped == shm::Pop::kCorrupt) {
      const Error error{ErrorKind::kViolation, "its submission ring is corrupt", "", {}};
      send_error(error, 0);
      close(error.in(describe()));
      return true;
    }
    if (popped == shm::Pop::kEmpty) return any || (about_to_sleep && !submissions_->prepare_to_sleep());
    any = true;
    if (job) job->record(*this, record);
  }
  return true;
}

void Session::complete(const shm::Record& record) {
  if (closed_ || !completions_) return;
  overflow_.push_back(record);
  flush_completions();
  if (overflow_.size() <= kMaxOverflow) return;
  const Error error{ErrorKind::kViolation, "it does not read its completions", "", {}};
  send_error(error, 0);
  close(error.in(describe()));
}

bool Session::flush_completions() {
  bool any = false;
  while (!overflow_.empty()) {
    const shm::Push pushed = completions_->push(overflow_.front());
    if (pushed == shm::Push::kFull) {
      if (retry_ == 0) retry_ = reactor_.after(kOverflowRetryUs, [this] { retry_ = 0; });
      break;
    }
    if (pushed == shm::Push::kCorrupt) {
      overflow_.clear();
      close({ErrorKind::kViolation, describe() + " corrupted its completion ring", "", {}});
      return true;
    }
    overflow_.pop_front();
    any = true;
    if (pushed == shm::Push::kWake) worker_bell_->ring();
  }
  return any;
}

void Session::send_error(const Error& error, std::uint64_t operation) {
  if (!channel_.open()) return;
  ipc::ErrorMessage message;
  message.error_kind = static_cast<std::uint32_t>(error.kind);
  message.operation = operation;
  const auto cut = [](const std::string& text) { return std::string_view(text).substr(0, 2000); };
  const auto ok =
      send(ipc::encode(message, ipc::MessageKind::kError, {cut(error.what), cut(error.fix), cut(error.where)}));
  LOG_IF(INFO, !ok) << describe() << " could not be told of an error: " << ok.error().message();
}

Result<void> Session::send(const std::vector<std::byte>& bytes, std::span<const int> descriptors) {
  return channel_.send(bytes, descriptors);
}

}  // namespace deft::daemon
