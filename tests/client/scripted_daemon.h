// A daemon that does what a test tells it, on a thread of its own: the other end of libdeft's socket and rings.
//
//   ScriptedDaemon daemon([](Worker& worker) { worker.welcome(); worker.expect_declaration(); ... });
//   auto session = daemon.open();
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/client/deft.h"
#include "core/ipc/message_socket.h"
#include "core/ipc/wire.h"
#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"
#include "core/shm/ring.h"
#include "tests/ipc/scratch.h"

namespace deft::test {

inline constexpr TimeUs kPatienceUs = 60'000'000;

// The daemon's end of one worker.
class Worker {
 public:
  explicit Worker(ipc::MessageSocket channel) : channel_(std::move(channel)) {}

  ipc::Packet receive();  // the next message; empty: the worker has gone
  void send(std::span<const std::byte> bytes, std::span<const int> descriptors = {});
  void send_error(ErrorKind kind, const std::string& what, std::uint64_t operation = 0);
  void close() { channel_.close(); }

  // A link that the worker is to run: told right behind the welcome.
  void announce(const ipc::LinkMessage& link, const std::vector<std::string_view>& texts) {
    links_.push_back(ipc::encode(link, ipc::MessageKind::kLink, texts));
  }
  // Answers HELLO: a world of `node_of.size()` workers.
  void welcome(std::vector<std::uint32_t> node_of = {0}, std::uint32_t spin_us = 0, TimeUs timeout_us = kPatienceUs);
  // Takes DECLARE and its tensors and passes an arena, which arena() then shows.
  void grant_arena(std::uint64_t bytes);
  std::byte* arena() { return arena_->data(); }
  // Answers STAGING_BUFFER; then staging_buffer() shows the last one.
  void grant_staging_buffer();
  std::byte* staging_buffer() { return buffer_->data(); }
  ipc::Decoded<ipc::Operation> expect_operation();  // grants a buffer first if one is asked for

  shm::Record pop();  // the next record; waits
  // The same, which must be of this kind.
  template <typename Payload>
  Payload pop_as() {
    const shm::Record record = pop();
    EXPECT_EQ(record.kind(), Payload::kKind);
    return record.kind() == Payload::kKind ? record.as<Payload>() : Payload{};
  }
  void push(const shm::Record& record);
  void finish(std::uint32_t tensor, std::uint32_t count, std::uint64_t step, std::uint32_t group = 0);
  void operation_done(std::uint64_t operation, std::uint32_t error_kind = 0);
  shm::ControlSegment& rings() { return *view_; }
  // Waits until `holds`, which looks at the rings' shared words.
  template <typename Condition>
  void await(const Condition& holds) {
    const TimeUs deadline = MonotonicClock::now() + kPatienceUs;
    while (!holds()) {
      ASSERT_LT(MonotonicClock::now(), deadline);
      std::this_thread::yield();
    }
  }
  // Waits until the worker has read all completions and sleeps.
  void await_sleep() {
    await([this] {
      const auto& ring = view_->completion();
      return ring.head == ring.tail && ring.sleeping == 1;
    });
  }
  // A worker that was awake has perhaps seen already what there is, and gone.
  void wake() { static_cast<void>(channel_.send(ipc::encode(ipc::Wake{}, ipc::MessageKind::kWake))); }

 private:
  ipc::MessageSocket channel_;
  std::vector<std::vector<std::byte>> links_;
  std::optional<shm::Segment> control_, arena_, buffer_;
  std::optional<shm::ControlSegment> view_;
  std::optional<shm::Doorbell> own_bell_;
  std::optional<shm::Consumer> submissions_;
  std::optional<shm::Producer> completions_;
};

class ScriptedDaemon {
 public:
  explicit ScriptedDaemon(std::function<void(Worker&)> script);
  ~ScriptedDaemon();  // waits for the script's end

  // deft_open as rank `rank` of `size` on one node. `error` if it fails.
  deft_session* open(deft_error* error = nullptr, int rank = 0, int size = 1, const char* timeout = "60s");
  [[nodiscard]] std::string path() const { return scratch_.file("deftd.sock"); }

 private:
  Scratch scratch_;
  std::optional<ipc::Listener> listener_;
  std::thread thread_;
};

// A group of `count` float32 tensors of 16 elements each, named t0, t1, ...; declares them as "group".
deft_group* declare(deft_session* session, std::size_t count, deft_error* error = nullptr);
inline constexpr std::uint64_t kTensorBytes = 64;
std::uint64_t arena_bytes(std::size_t count);

}  // namespace deft::test
