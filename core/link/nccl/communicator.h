// An NCCL communicator between the ranks of a job, with a stream of its own, that never blocks for longer than it must.
//
// The communicator is non-blocking: its state is polled, so that abort() ends whatever it does. Calls come one at a time,
// abort() from any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "core/link/link.h"
#include "core/link/nccl/libraries.h"

namespace deft::link::nccl_backend {

class Communicator {
 public:
  // Meets the other ranks in the group's store and connects. Errors name ranks that did not come or that have another
  // version of NCCL. It uses the GPU that the calling thread has made current. If all ranks on this machine have the same GPU
  // current, nobody has chosen. Then each takes the GPU of its place, if there are enough. The thread's own GPU stays current.
  static Result<std::unique_ptr<Communicator>> connect(const LinkSpec& spec, const LinkGroup& group);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  [[nodiscard]] std::uint32_t own() const { return own_; }
  [[nodiscard]] std::uint32_t members() const { return members_; }

  // Makes this worker's GPU current for the calling thread.
  Result<void> use_device();
  // Enqueues by `call(communicator, stream)` and waits until the stream has done it. NCCL may not notice for very long that the network
  // is lost, so the group's `on_waiting` is called meanwhile.
  Result<void> run(const char* name, const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call);
  // Enqueues a copy, in either direction; run() that follows is behind it.
  Result<void> copy(void* to, const void* from, std::size_t bytes);
  // Waits for all enqueued work.
  Result<void> wait(const char* name);
  [[nodiscard]] const Libraries& libraries() const { return libraries_; }
  // True if NCCL can work on `data` in place; an error if `data` is on another GPU.
  [[nodiscard]] Result<bool> is_device_memory(const void* data) const;

  // Whoever waits gives up; then it is to be halted.
  void abort() { aborted_ = true; }
  [[nodiscard]] bool aborted() const { return aborted_; }
  // Gives the communicator up and waits until the stream touches no memory any more. Aborting ends kernels that still wait
  // for peers, and does not need them; the peers learn of it. More than once is harmless.
  void halt();

 private:
  Communicator(const Libraries& libraries, const LinkGroup& group)
      : libraries_(libraries), own_(group.node), members_(group.nodes), on_waiting_(group.on_waiting) {}
  Result<void> find_devices();
  Result<void> meet_all(const LinkGroup& group);
  Result<void> join(const ncclUniqueId& id, const LinkGroup& group);
  Result<bool> busy(const char* name) const;
  Result<void> settle(const char* name, const LinkGroup* group);

  const Libraries& libraries_;
  const std::uint32_t own_, members_;
  const std::function<void()> on_waiting_;
  std::string others_;            // for messages
  int device_ = 0, devices_ = 0;  // this rank's GPU, of how many
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::atomic<bool> aborted_{false};
};

}  // namespace deft::link::nccl_backend
