// The NCCL link: collectives between the workers' GPUs.
//
// Works on device memory in place; host memory is staged through the GPU, so every request of a job can take this link. NCCL
// runs a whole all-reduce natively and decides the order of its sums: replicas are equal, but other links give other last
// bits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/link/link.h"
#include "core/link/nccl/communicator.h"

namespace deft::link::nccl_backend {

class LinkImpl final : public Link {
 public:
  LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Communicator> communicator);
  ~LinkImpl() override;

  [[nodiscard]] bool composes() const override { return false; }

 protected:
  Result<void> start(const WorkRequest& request) override;
  Result<std::optional<std::uint64_t>> await() override;
  void settle() override;
  void stop(const Error& reason) override;

 private:
  void halt_if_aborted();
  template <typename Work>
  Result<void> on_device(std::byte* data, std::size_t bytes, Work work);
  Result<void> reserve(std::size_t bytes);
  Result<void> run_on_gpu(const WorkRequest& request);
  Result<void> all_reduce(const WorkRequest& request);
  Result<void> broadcast_block(std::byte* data, std::size_t bytes, std::uint32_t root);

  std::mutex turn_;  // whose it is to use or to halt the communicator
  std::unique_ptr<Communicator> communicator_;
  std::byte* scratch_ = nullptr;  // on the GPU, for host memory
  std::size_t scratch_bytes_ = 0;
  WorkRequest request_;  // in flight
};

}  // namespace deft::link::nccl_backend
