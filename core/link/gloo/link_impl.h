// The gloo link: collectives over the mesh, and one place where their failures become errors.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "core/link/failure.h"
#include "core/link/gloo/all_reduce.h"
#include "core/link/gloo/mesh.h"
#include "core/link/link.h"

namespace deft::link::gloo_backend {

class LinkImpl final : public Link {
 public:
  // `express`: another link over the same NIC, or null.
  LinkImpl(std::string name, std::unique_ptr<Mesh> mesh, std::unique_ptr<LinkImpl> express = nullptr);
  ~LinkImpl() override;

  [[nodiscard]] const std::string& name() const override { return name_; }
  Result<void> all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) override;
  [[nodiscard]] std::size_t depth() const override { return AllReduce::kDepth; }
  Result<void> start_all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                std::uint32_t urgency) override;
  Result<void> finish_all_reduce() override;
  Result<std::optional<std::size_t>> finish_next() override;
  void wake() override;
  Result<void> broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) override;
  Result<void> all_gather(std::byte* data, std::span<const std::size_t> bytes) override;
  [[nodiscard]] Link* express() override { return express_.get(); }
  void abort(std::string_view reason) override;

 private:
  template <typename Operation>
  Result<void> run(Operation operation);
  void exchange_blocks(std::byte* data, std::span<const std::size_t> bytes, std::uint64_t kind);
  void part();
  void stop();
  Error failure(std::uint32_t peer, const std::string& cause);

  const std::string name_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<AllReduce> all_reduce_;  // none when the node is alone
  std::uint64_t transfers_ = 0;
  Failure failure_;
  std::unique_ptr<LinkImpl> express_;
};

}  // namespace deft::link::gloo_backend
