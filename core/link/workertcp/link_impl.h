// The workertcp link: all-reduce between the workers themselves over plain TCP, in host memory.
//
// It exists to test links that run in the workers' processes where there is no GPU, and to compare with: what such a link
// costs beside one that the daemon runs. For training in host memory, gloo is the better choice: with several workers on a
// node each of them sends its gradients, where the daemon sends their sum.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/link/failure.h"
#include "core/link/link.h"
#include "core/link/workertcp/mesh.h"

namespace deft::link::workertcp_backend {

class LinkImpl final : public Link {
 public:
  // `node_of`: the node of each member; empty: each has its own.
  LinkImpl(std::string name, std::unique_ptr<Mesh> mesh, std::vector<std::uint32_t> node_of);

  [[nodiscard]] const std::string& name() const override { return name_; }
  Result<void> all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) override;
  Result<void> broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) override;
  Result<void> all_gather(std::byte* data, std::span<const std::size_t> bytes) override;
  void abort(std::string_view reason) override;

 private:
  template <typename Operation>
  Result<void> run(Operation operation);
  Result<void> reduce_slices(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op);
  void reduce_by_node(std::span<std::byte> out, std::span<std::byte* const> inputs, model::DType dtype,
                      model::ReduceOp op);
  Result<void> exchange_blocks(std::byte* data, std::span<const std::size_t> bytes, std::uint64_t tag);

  const std::string name_;
  std::unique_ptr<Mesh> mesh_;
  const std::vector<std::uint32_t> node_of_;
  std::vector<std::byte> scratch_;  // what the others sent of this member's slice
  Failure failure_;
};

}  // namespace deft::link::workertcp_backend
