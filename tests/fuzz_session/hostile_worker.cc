#include "tests/fuzz_session/hostile_worker.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/ipc/wire.h"
#include "tests/fuzz/reached.h"

namespace deft::fuzz {
namespace {

constexpr TimeUs kPatienceUs = 200'000;
constexpr auto kKinds = static_cast<std::uint32_t>(ipc::MessageKind::kTrace);  // they count from 1

Reached& kinds_sent() {
  static Reached kinds("messages of a worker to the daemon", kKinds);
  return kinds;
}

}  // namespace

HostileWorker::HostileWorker(const std::string& path, std::span<const std::uint8_t> data) : data_(data) {
  if (auto channel = ipc::MessageSocket::connect(path)) channel_ = std::move(*channel);
}

HostileWorker::~HostileWorker() {
  if (control_ != nullptr) munmap(control_, shm::kControlSegmentBytes);
}

bool HostileWorker::act() {
  if (data_.empty() || !channel_.open()) return false;
  switch (data_.take<std::uint8_t>() % 12) {
    case 0: send_rubbish(); break;
    case 1: say_hello(); break;
    case 2: declare(); break;
    case 3: ask_for_staging_buffer(); break;
    case 4: ask_for_operation(); break;
    case 5: push_record(); break;
    case 6: scribble(); break;
    case 7: report(); break;
    case 8: use_store(); break;
    case 9: send_command(); break;
    case 10: say_last_words(); break;
    default: send_message(ipc::StagingBuffer{}, ipc::MessageKind::kStatus); break;
  }
  return true;
}

void HostileWorker::send(const void* bytes, std::size_t count) {
  ipc::MessageHeader header;
  std::memcpy(&header, bytes, std::min(count, sizeof header));
  kinds_sent().count(static_cast<std::size_t>(header.kind) - 1);
  if (!channel_.send({static_cast<const std::byte*>(bytes), count})) channel_.close();
}

template <typename Message>
void HostileWorker::send_message(Message message, ipc::MessageKind kind) {
  const auto packet = ipc::encode(message, kind, {"tensor"});
  send(packet.data(), packet.size());
}

// A packet that is right in its header and nowhere else.
void HostileWorker::send_rubbish() {
  std::array<std::byte, 256> packet{};
  const std::size_t bytes = std::max<std::size_t>(data_.take<std::uint8_t>(), sizeof(ipc::MessageHeader));
  const ipc::MessageHeader header{ipc::kProtocolMagic,
                                  static_cast<ipc::MessageKind>(data_.take<std::uint8_t>() % (kKinds + 1)),
                                  static_cast<std::uint32_t>(bytes), ipc::kProtocolVersion};
  data_.copy_to(packet.data() + sizeof header, bytes - sizeof header);
  std::memcpy(packet.data(), &header, sizeof header);
  send(packet.data(), bytes);
}

// Mostly the only worker of a job of its own, so that the job runs.
void HostileWorker::say_hello() {
  ipc::Hello hello;
  const auto shape = data_.take<std::uint8_t>();
  hello.world = shape < 224 ? 1 : data_.take<std::uint32_t>();
  hello.rank = shape < 240 ? 0 : data_.take<std::uint32_t>();
  hello.local_size = shape < 224 ? 1 : data_.take<std::uint32_t>();
  hello.local_rank = shape < 250 ? 0 : data_.take<std::uint32_t>();
  static std::uint64_t jobs = 0;  // an ended job's name is taken for a moment longer
  job_ = "fuzz-" + std::to_string(++jobs) + (shape % 4 == 0 ? text() : "");
  const std::string leader = shape % 8 == 1 ? text() : "127.0.0.1:1";
  const std::string settings = shape % 8 == 2 ? text() : "";
  const auto packet = ipc::encode(hello, ipc::MessageKind::kHello, {job_, leader, settings, "0.1.0"});
  send(packet.data(), packet.size());
  if (shape < 224) wait_for_welcome();
}

// Any bytes but a 0, which would end the text.
std::string HostileWorker::text() {
  std::string bytes(data_.take<std::uint8_t>(), '\1');
  data_.copy_to(bytes.data(), bytes.size());
  std::replace(bytes.begin(), bytes.end(), '\0', '\1');
  return bytes;
}

// A few keys, so that what is asked for may be there, and now and then any.
void HostileWorker::use_store() {
  const auto shape = data_.take<std::uint8_t>();
  ipc::StoreItem item;
  item.request = data_.take<std::uint8_t>();
  const std::string key = shape < 200 ? "key-" + std::to_string(shape % 4) : text();
  const std::string value = text();
  const std::string_view texts[] = {key};
  const bool set = shape % 8 < 4;
  const auto packet = ipc::encode(item, set ? ipc::MessageKind::kStoreSet : ipc::MessageKind::kStoreGet, texts,
                                  set ? std::as_bytes(std::span(value)) : std::span<const std::byte>{});
  send(packet.data(), packet.size());
}

// What `deft set` and `deft trace` ask for. Nothing can be written in the folders.
void HostileWorker::send_command() {
  const auto shape = data_.take<std::uint8_t>();
  const std::string job = shape < 128 ? job_ : text();
  if (shape % 2 == 0) {
    const std::string settings = shape % 8 == 0 ? "policy=p3\n" : shape % 8 == 2 ? "credit_bytes=4096\n" : text();
    const auto packet = ipc::encode(ipc::ChangeSettings{}, ipc::MessageKind::kChangeSettings, {job, settings});
    return send(packet.data(), packet.size());
  }
  ipc::TraceRequest request;
  request.action = static_cast<ipc::TraceAction>(data_.take<std::uint8_t>() % 5);
  request.steps = data_.take<std::uint32_t>();
  const auto packet = ipc::encode(request, ipc::MessageKind::kTrace, {job, "/proc/none/" + text()});
  send(packet.data(), packet.size());
}

// A link of its own that failed, or the end.
void HostileWorker::say_last_words() {
  if (data_.take<std::uint8_t>() % 4 == 0) return send_message(ipc::Text{}, ipc::MessageKind::kGoodbye);
  ipc::ErrorMessage error;
  error.error_kind = data_.take<std::uint8_t>();
  error.operation = data_.take<std::uint8_t>();
  const auto packet = ipc::encode(error, ipc::MessageKind::kError, {text(), text(), text()});
  send(packet.data(), packet.size());
}

void HostileWorker::wait_for_welcome() {
  if (control_ != nullptr || !channel_.open()) return;
  auto packet = channel_.receive(MonotonicClock::now() + kPatienceUs);
  if (!packet || packet->descriptors.size() != 2) return;
  void* mapped =
      mmap(nullptr, shm::kControlSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED, packet->descriptors[0].get(), 0);
  if (mapped != MAP_FAILED) control_ = static_cast<std::byte*>(mapped);
  if (auto bell = shm::Doorbell::adopt(std::move(packet->descriptors[1]))) daemon_bell_ = std::move(*bell);
}

void HostileWorker::declare() {
  const auto shape = data_.take<std::uint8_t>();
  ipc::Declare group;
  group.group = shape < 200 ? groups_++ : data_.take<std::uint32_t>();
  group.tensors = shape < 230 ? 1 + shape % 4 : data_.take<std::uint32_t>();
  group.slots = shape < 240 ? 1 : data_.take<std::uint32_t>();
  group.reduce_op = 1;
  send_message(group, ipc::MessageKind::kDeclare);
  for (std::uint32_t i = 0; i < 1U + shape % 4; ++i) {
    ipc::DeclareTensor tensor;
    tensor.group = group.group;
    tensor.index = i;
    tensor.dtype = data_.take<std::uint8_t>() % 10;
    tensor.dims = data_.take<std::uint8_t>() % 10;
    for (auto& extent : tensor.shape) extent = data_.take<std::uint8_t>();
    if (shape >= 245) tensor.shape[0] = data_.take<std::uint64_t>();
    const std::string codec = shape % 16 == 3 ? text() : shape % 16 == 5 ? "int8" : "";
    const auto packet = ipc::encode(tensor, ipc::MessageKind::kDeclareTensor, {"tensor", codec});
    send(packet.data(), packet.size());
  }
}

void HostileWorker::ask_for_staging_buffer() {
  ipc::StagingBuffer buffer;
  buffer.buffer = data_.take<std::uint8_t>() % 4;
  buffer.bytes = data_.take<std::uint8_t>() < 200 ? data_.take<std::uint16_t>() : data_.take<std::uint64_t>();
  const bool free = data_.take<std::uint8_t>() % 4 == 0;
  send_message(buffer, free ? ipc::MessageKind::kFreeStagingBuffer : ipc::MessageKind::kStagingBuffer);
}

void HostileWorker::ask_for_operation() {
  ipc::Operation call;
  call.operation = data_.take<std::uint8_t>();
  call.collective = static_cast<ipc::Collective>(data_.take<std::uint8_t>() % 6);
  call.staging_buffer = data_.take<std::uint8_t>() % 4;
  const bool wild = data_.take<std::uint8_t>() > 200;
  call.offset = wild ? data_.take<std::uint64_t>() : data_.take<std::uint8_t>();
  call.count = wild ? data_.take<std::uint64_t>() : data_.take<std::uint8_t>();
  call.capacity = wild ? data_.take<std::uint64_t>() : call.count;
  call.dtype = data_.take<std::uint8_t>() % 10;
  call.reduce_op = data_.take<std::uint8_t>() % 5;
  call.root = wild ? data_.take<std::uint32_t>() : 0;
  const auto packet = ipc::encode(call, ipc::MessageKind::kOperation, {"tensor", "terms"});
  send(packet.data(), packet.size());
}

void HostileWorker::report() {
  ipc::Statistics statistics;
  data_.copy_to(&statistics, sizeof statistics);
  statistics.group %= 3;
  const auto packet = ipc::encode(statistics, ipc::MessageKind::kStatistics);
  send(packet.data(), packet.size());
}

// One of seven kinds that a worker sends, with numbers that may exist.
shm::Record HostileWorker::plausible_record(std::uint8_t shape) {
  const auto below = [this](std::uint32_t limit) { return data_.take<std::uint8_t>() % limit; };
  switch (shape % 5) {
    case 0:
      return shm::ReadyRecord{.group = below(2),
                              .slot = below(2),
                              .first_tensor = below(4),
                              .tensors = below(5),
                              .generation = below(4),
                              .last_step = below(4),
                              .cycle_step = below(2)};
    case 1: return shm::StageRecord{.stage = below(4), .step = below(4), .waited_us = data_.take<std::uint64_t>()};
    case 2:
      if (shape % 10 == 7) return shm::RunningRecord{.link = below(3), .launch = below(4)};
      return shm::RanRecord{.link = below(3), .launch = below(4)};
    case 3: return shm::FlushRecord{.group = below(2), .step = below(4)};
    default: break;
  }
  if (shape % 10 == 4) return shm::ReleaseRecord{.group = below(2)};
  return shm::SegmentRecord{.link = below(3),
                            .peer_rank = below(4),
                            .launch = below(4),
                            .bytes = data_.take<std::uint64_t>(),
                            .began_us = data_.take<std::uint64_t>(),
                            .ended_us = data_.take<std::uint64_t>(),
                            .part = below(5),
                            .is_sent = below(3)};
}

void HostileWorker::push_record() {
  if (control_ == nullptr) return;
  auto& ring = *reinterpret_cast<shm::RingControl*>(control_ + shm::kSubmissionOffset);
  auto* records = reinterpret_cast<shm::Record*>(control_ + shm::kSubmissionOffset + sizeof(shm::RingControl));
  const std::uint64_t tail = ring.tail.load();
  shm::Record& record = records[tail % shm::kRingCapacity];
  const auto shape = data_.take<std::uint8_t>();
  if (shape >= 200) {
    data_.copy_to(&record, sizeof record);
  } else {
    record = plausible_record(shape);
  }
  ring.tail.store(tail + 1);
  daemon_bell_.ring();
}

void HostileWorker::scribble() {
  if (control_ == nullptr) return;
  const std::size_t at = data_.take<std::uint32_t>() % (shm::kControlSegmentBytes / sizeof(std::uint64_t));
  auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(control_ + at * sizeof(std::uint64_t));
  word->store(data_.take<std::uint64_t>());
  daemon_bell_.ring();
}

}  // namespace deft::fuzz
