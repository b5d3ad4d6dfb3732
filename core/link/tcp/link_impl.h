// The TCP link: collectives between the workers themselves over plain TCP, in host memory.
//
// It tests in-process links on machines without a GPU, and serves to compare: it shows the cost of such a link beside one
// that the daemon runs. For training in host memory, gloo is the better choice: with several workers on a node each worker
// sends its gradients over tcp, but the daemon sends one sum.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/link/link.h"
#include "core/link/tcp/transport.h"

namespace deft::link::tcp_backend {

class LinkImpl final : public Link {
 public:
  LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Transport> transport);

 protected:
  Result<void> start(const WorkRequest& request) override;
  Result<std::optional<std::uint64_t>> await() override;
  void settle() override { transport_->abort(); }
  void stop(const Error& /*reason*/) override { transport_->abort(); }

 private:
  Result<void> reduce();
  [[nodiscard]] std::vector<const std::byte*> sums_of_nodes(std::span<std::byte* const> inputs,
                                                            std::size_t count) const;
  Result<void> exchange_blocks();

  std::unique_ptr<Transport> transport_;
  const std::vector<std::uint32_t> node_of_;  // the node of each member; empty: each has its own
  WorkRequest request_;                       // in flight
  std::vector<std::byte> scratch_;            // the other members' values of this member's slice
};

}  // namespace deft::link::tcp_backend
