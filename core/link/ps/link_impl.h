// The ps link: every operation is a round of pushes to the parameter servers, each answered by its result.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/link/link.h"
#include "core/link/ps/exchange.h"

namespace deft::link::ps_backend {

class LinkImpl final : public Link {
 public:
  LinkImpl(std::string name, std::unique_ptr<Exchange> exchange);

  [[nodiscard]] const std::string& name() const override { return name_; }
  Result<void> all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) override;
  Result<void> broadcast(std::byte* data, std::size_t bytes, std::uint32_t root) override;
  Result<void> all_gather(std::byte* data, std::span<const std::size_t> bytes) override;
  void abort(std::string_view reason) override;

 private:
  Result<void> run(std::byte* data, Header shape);

  const std::string name_;
  std::unique_ptr<Exchange> exchange_;
  std::vector<Segment> segments_;  // of the running operation

  std::mutex mutex_;
  std::optional<Error> failed_;  // guarded by mutex_
};

}  // namespace deft::link::ps_backend
