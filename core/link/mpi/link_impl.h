// The MPI link: collectives over the carrier, and one place where their failures become errors.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "core/link/link.h"
#include "core/link/mpi/all_reduce.h"
#include "core/link/mpi/blocks.h"
#include "core/link/mpi/carrier.h"

namespace deft::link::mpi_backend {

class LinkImpl final : public Link {
 public:
  // `carrier`: none where the node is alone.
  LinkImpl(std::string name, std::unique_ptr<Carrier> carrier);

  [[nodiscard]] const std::string& name() const override { return name_; }
  Result<void> all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) override;
  [[nodiscard]] std::size_t depth() const override { return AllReduce::kDepth; }
  Result<void> start_all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                std::uint32_t urgency) override;
  Result<void> finish_all_reduce() override;
  Result<void> broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) override;
  Result<void> all_gather(std::byte* data, std::span<const std::size_t> bytes) override;
  void abort(std::string_view reason) override;

 private:
  [[nodiscard]] std::uint32_t nodes() const { return carrier_ ? carrier_->nodes() : 1; }
  template <typename Operation>
  Result<void> run(Operation operation);

  const std::string name_;
  const std::unique_ptr<Carrier> carrier_;
  std::optional<AllReduce> all_reduce_;
  std::optional<Blocks> blocks_;

  std::mutex mutex_;
  std::optional<Error> aborted_;  // guarded by mutex_; of a node that is alone
};

}  // namespace deft::link::mpi_backend
