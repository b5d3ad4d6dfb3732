// The helper processes of one MPI link, seen from the daemon: deft-mpi, which is a PMIx server, and the MPI process that it
// starts. Neither outlives this object, nor the daemon.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "core/base/descriptor.h"
#include "core/base/status.h"
#include "core/link/mpi/agent/arguments.h"
#include "core/link/mpi/wire.h"
#include "core/shm/segment.h"

namespace deft::link::mpi_backend {

// True if one of them was ready by the deadline.
bool poll_until(std::span<pollfd> waits, TimeUs deadline_us);

// The path of deft-mpi, which lies beside this program or in ../bin. An error lists the places that were searched.
Result<std::string> find_program();

class AgentProcess {
 public:
  struct Message {
    ControlKind kind;
    std::string content;
  };

  // `arguments` without descriptors; `interface`: the NIC, or empty.
  static Result<std::unique_ptr<AgentProcess>> start(const AgentArguments& arguments, const std::string& interface);
  // Lets a helper that is connected say farewell to the other nodes; takes half a second at most, usually far less.
  ~AgentProcess();
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  [[nodiscard]] int data_socket() const { return data_.get(); }
  [[nodiscard]] int control_socket() const { return control_.get(); }
  [[nodiscard]] std::byte* slots() const { return slots_.data(); }

  // False when the helper has ended.
  bool send(ControlKind kind, std::string_view content);
  // Content of any length: as many messages of the kind `part` as it takes, and one of the kind `last`.
  bool send_in_parts(ControlKind part, ControlKind last, std::string_view content);
  // The next control message by the deadline; none when there is no more.
  std::optional<Message> hear(TimeUs deadline_us);

  // From now on other nodes wait for this one's farewell.
  void connected() { connected_ = true; }

  // What helper and MPI wrote to their standard error output last, in one line.
  [[nodiscard]] std::string last_words() const;

 private:
  AgentProcess() = default;
  Result<void> launch(const std::string& program, const AgentArguments& arguments, const std::string& interface);

  Descriptor control_;
  Descriptor data_;
  Descriptor words_;  // a memory file: the helper's standard error output
  shm::Segment slots_;
  pid_t pid_ = -1;
  bool connected_ = false;
};

}  // namespace deft::link::mpi_backend
