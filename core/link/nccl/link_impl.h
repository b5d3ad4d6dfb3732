// The NCCL link: all-reduce between the workers' GPUs.
//
// Works on device memory in place; host memory is staged through the GPU, so that whatever a job sends can go over it. NCCL
// decides the order of its sums: replicas are equal, but other links give other last bits.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "core/link/failure.h"
#include "core/link/link.h"
#include "core/link/nccl/communicator.h"

namespace deft::link::nccl_backend {

class LinkImpl final : public Link {
 public:
  LinkImpl(std::string name, std::unique_ptr<Communicator> communicator);
  ~LinkImpl() override;

  [[nodiscard]] const std::string& name() const override { return name_; }
  Result<void> all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) override;
  Result<void> broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) override;
  Result<void> all_gather(std::byte* data, std::span<const std::size_t> bytes) override;
  void abort(std::string_view reason) override;

 private:
  template <typename Operation>
  Result<void> run(Operation operation);
  void halt_if_aborted();
  template <typename Operation>
  Result<void> on_device(std::byte* data, std::size_t bytes, Operation operation);
  Result<void> reserve(std::size_t bytes);
  Result<void> broadcast_block(std::byte* data, std::size_t bytes, std::uint32_t root);

  const std::string name_;
  std::mutex turn_;  // whose it is to use or to halt the communicator
  std::unique_ptr<Communicator> communicator_;
  std::byte* scratch_ = nullptr;  // on the GPU, for host memory
  std::size_t scratch_bytes_ = 0;
  Failure failure_;
};

}  // namespace deft::link::nccl_backend
