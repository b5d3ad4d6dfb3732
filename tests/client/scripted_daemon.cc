#include "tests/client/scripted_daemon.h"

#include <poll.h>

#include <algorithm>
#include <array>

#include "core/model/tensors.h"

namespace deft::test {

ipc::Packet Worker::receive() {
  auto packet = channel_.receive(MonotonicClock::now() + kPatienceUs);
  EXPECT_TRUE(packet) << packet.error().message();
  return packet ? std::move(*packet) : ipc::Packet{};
}

void Worker::send(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  const auto sent = channel_.send(bytes, descriptors);
  EXPECT_TRUE(sent) << sent.error().message();
}

void Worker::send_error(ErrorKind kind, const std::string& what, std::uint64_t operation) {
  ipc::ErrorMessage message;
  message.error_kind = static_cast<std::uint32_t>(kind);
  message.operation = operation;
  send(ipc::encode(message, ipc::MessageKind::kError, {what, "do this", "here"}));
}

void Worker::welcome(std::vector<std::uint32_t> node_of, std::uint32_t spin_us, TimeUs timeout_us) {
  const auto packet = receive();
  const auto hello = ipc::decode<ipc::Hello>(packet.bytes, ipc::MessageKind::kHello, 4);
  ASSERT_TRUE(hello) << hello.error().message();
  control_ = *shm::Segment::create("test-control", shm::kControlSegmentBytes);
  view_ = shm::ControlSegment::format(*control_, 7);
  own_bell_ = *shm::Doorbell::create();
  submissions_.emplace(view_->submission(), view_->submission_records());
  completions_.emplace(view_->completion(), view_->completion_records());
  ipc::Welcome message;
  message.daemon_epoch = 7;
  message.node = node_of[hello->fixed.rank];
  message.nodes = *std::max_element(node_of.begin(), node_of.end()) + 1;
  message.world = static_cast<std::uint32_t>(node_of.size());
  message.spin_us = spin_us;
  message.timeout_us = timeout_us;
  message.links = static_cast<std::uint32_t>(links_.size());
  const std::array<int, 2> descriptors{control_->descriptor(), own_bell_->descriptor()};
  send(ipc::encode(message, ipc::MessageKind::kWelcome, std::span<const std::string_view>{},
                   std::as_bytes(std::span(node_of))),
       descriptors);
  for (const auto& link : links_) send(link);
}

void Worker::grant_arena(std::uint64_t bytes) {
  const auto packet = receive();
  const auto declare = ipc::decode<ipc::Declare>(packet.bytes, ipc::MessageKind::kDeclare, 1);
  ASSERT_TRUE(declare) << declare.error().message();
  for (std::uint32_t i = 0; i < declare->fixed.tensors; ++i) {
    const auto tensor = receive();
    ASSERT_TRUE(ipc::decode<ipc::DeclareTensor>(tensor.bytes, ipc::MessageKind::kDeclareTensor, 2));
  }
  arena_ = *shm::Segment::create("test-arena", bytes);
  ipc::Declared message;
  message.group = declare->fixed.group;
  message.buckets = 1;
  message.arena_bytes = bytes;
  const std::array<int, 1> descriptors{arena_->descriptor()};
  send(ipc::encode(message, ipc::MessageKind::kDeclared), descriptors);
}

void Worker::grant_staging_buffer() {
  const auto packet = receive();
  const auto request = ipc::decode<ipc::StagingBuffer>(packet.bytes, ipc::MessageKind::kStagingBuffer, 0);
  ASSERT_TRUE(request) << request.error().message();
  buffer_ = *shm::Segment::create("test-staging", request->fixed.bytes);
  const std::array<int, 1> descriptors{buffer_->descriptor()};
  send(ipc::encode(request->fixed, ipc::MessageKind::kStagingBufferMade), descriptors);
}

ipc::Decoded<ipc::Operation> Worker::expect_operation() {
  if (!buffer_) grant_staging_buffer();
  const auto packet = receive();
  auto operation = ipc::decode<ipc::Operation>(packet.bytes, ipc::MessageKind::kOperation, 2);
  EXPECT_TRUE(operation) << operation.error().message();
  return operation ? *operation : ipc::Decoded<ipc::Operation>{};
}

shm::Record Worker::pop() {
  shm::Record record;
  const TimeUs deadline = MonotonicClock::now() + kPatienceUs;
  while (submissions_->pop(record) != shm::Pop::kRecord) {
    if (!submissions_->prepare_to_sleep()) continue;
    const bool rang = own_bell_->wait(deadline);
    submissions_->woke();
    if (!rang) {
      ADD_FAILURE() << "no record came";
      return {};
    }
  }
  return record;
}

void Worker::push(const shm::Record& record) {
  const auto pushed = completions_->push(record);
  EXPECT_TRUE(pushed == shm::Push::kDone || pushed == shm::Push::kWake);
  if (pushed == shm::Push::kWake) wake();
}

void Worker::finish(std::uint32_t tensor, std::uint32_t count, std::uint64_t step, std::uint32_t group) {
  push(shm::FinishRecord{.group = group, .first_tensor = tensor, .tensors = count, .generation = step});
}

void Worker::operation_done(std::uint64_t operation, std::uint32_t error_kind) {
  push(shm::OperationDoneRecord{.operation = operation, .error_kind = error_kind});
}

ScriptedDaemon::ScriptedDaemon(std::function<void(Worker&)> script) {
  auto listener = ipc::Listener::bind(path());
  EXPECT_TRUE(listener) << listener.error().message();
  listener_ = std::move(*listener);
  thread_ = std::thread([this, script = std::move(script)] {
    pollfd entry{listener_->descriptor(), POLLIN, 0};
    poll(&entry, 1, static_cast<int>(kPatienceUs / 1000));
    auto channel = listener_->accept();
    ASSERT_TRUE(channel && channel->has_value()) << "no worker came";
    Worker worker(std::move(**channel));
    script(worker);
  });
}

ScriptedDaemon::~ScriptedDaemon() { thread_.join(); }

deft_session* ScriptedDaemon::open(deft_error* error, int rank, int size, const char* timeout) {
  const std::string texts[] = {"socket=" + path(),
                               "rank=" + std::to_string(rank),
                               "world_size=" + std::to_string(size),
                               "local_rank=" + std::to_string(rank),
                               "local_size=" + std::to_string(size),
                               std::string("timeout=") + timeout};
  std::vector<const char*> options;
  for (const auto& text : texts) options.push_back(text.c_str());
  options.push_back(nullptr);
  deft_session* session = nullptr;
  deft_error own{};
  const int code = deft_open(options.data(), &session, error != nullptr ? error : &own);
  EXPECT_TRUE(error != nullptr || code == DEFT_OK) << own.message;
  return session;
}

deft_group* declare(deft_session* session, std::size_t count, deft_error* error) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back("t" + std::to_string(i));
  const std::uint64_t shape[] = {4, 4};
  std::vector<deft_tensor> tensors;
  for (std::size_t i = 0; i < count; ++i)
    tensors.push_back({names[i].c_str(), DEFT_FLOAT32, 2, shape, static_cast<std::uint32_t>(i)});
  deft_group* group = nullptr;
  deft_error own{};
  const int code =
      deft_declare(session, "group", tensors.data(), count, 1, DEFT_SUM, &group, error != nullptr ? error : &own);
  EXPECT_TRUE(error != nullptr || code == DEFT_OK) << own.message;
  return group;
}

std::uint64_t arena_bytes(std::size_t count) {
  std::vector<model::TensorSpec> specs;
  for (std::size_t i = 0; i < count; ++i)
    specs.push_back({"t" + std::to_string(i), model::DType::kFloat32, {4, 4}, static_cast<std::uint32_t>(i)});
  return model::lay_out(specs, 1)->total_bytes();
}

}  // namespace deft::test
