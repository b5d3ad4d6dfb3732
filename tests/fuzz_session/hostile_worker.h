// A worker that follows no rule: it turns bytes into messages, ring records and scribbles on its control segment.
//
//   HostileWorker worker(path, data);
//   while (worker.act()) {}          // until the data is used up, or the daemon has dropped it
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/ipc/message_socket.h"
#include "core/ipc/messages.h"
#include "core/shm/doorbell.h"
#include "core/shm/layout.h"
#include "tests/fuzz/bytes.h"

namespace deft::fuzz {

class HostileWorker {
 public:
  HostileWorker(const std::string& path, std::span<const std::uint8_t> data);
  ~HostileWorker();
  bool act();  // one thing; false: the end

 private:
  void send_rubbish();
  void say_hello();
  void declare();
  void ask_for_staging_buffer();
  void ask_for_operation();
  void report();
  void use_store();
  void send_command();
  void say_last_words();
  std::string text();
  void push_record();
  shm::Record plausible_record(std::uint8_t shape);
  void scribble();
  void wait_for_welcome();
  void send(const void* bytes, std::size_t count);
  template <typename Message>
  void send_message(Message message, ipc::MessageKind kind);

  Bytes data_;
  ipc::MessageSocket channel_;
  std::byte* control_ = nullptr;  // the control segment, mapped as a hostile client would
  shm::Doorbell daemon_bell_;
  std::uint32_t groups_ = 0;
  std::string job_;  // of its newest HELLO
};

}  // namespace deft::fuzz
