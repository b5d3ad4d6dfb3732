// The ps link: every operation is a round of pushes to the parameter servers, each answered by its result. To start an
// all-reduce is to push it, to finish it is to pull it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/link/failure.h"
#include "core/link/link.h"
#include "core/link/ps/exchange.h"

namespace deft::link::ps_backend {

class LinkImpl final : public Link {
 public:
  LinkImpl(std::string name, std::unique_ptr<Exchange> exchange);

  [[nodiscard]] const std::string& name() const override { return name_; }
  Result<void> all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) override;
  [[nodiscard]] std::size_t depth() const override { return kDepth; }
  Result<void> start_all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                std::uint32_t urgency) override;
  Result<void> finish_all_reduce() override;
  Result<std::optional<std::size_t>> finish_next() override;
  void wake() override { exchange_->wake(); }
  Result<void> broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) override;
  Result<void> all_gather(std::byte* data, std::span<const std::size_t> bytes) override;
  void abort(std::string_view reason) override;

 private:
  static constexpr std::size_t kDepth = 4;  // what is on the wire is bounded by kWindow; these wait for it
  template <typename Operation>
  Result<void> run(Operation operation);
  Result<void> push(std::byte* data, std::vector<Segment> segments, Header shape);
  Result<void> pull();

  const std::string name_;
  std::unique_ptr<Exchange> exchange_;
  Failure failure_;
};

}  // namespace deft::link::ps_backend
