// The MPI link: all-reduces and exchanges of blocks over the messages that the MPI process carries.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "core/link/link.h"
#include "core/link/mpi/block_exchange.h"
#include "core/link/mpi/engine.h"
#include "core/link/mpi/transport.h"

namespace deft::link::mpi_backend {

class LinkImpl final : public Link {
 public:
  // `transport`: none if the node is alone.
  LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Transport> transport);

 protected:
  Result<void> start(const WorkRequest& request) override;
  Result<std::optional<std::uint64_t>> await() override;
  void settle() override {}  // only start() and await() touch data
  void stop(const Error& reason) override { transport_->abort(reason); }

 private:
  const std::unique_ptr<Transport> transport_;
  std::optional<Engine> engine_;
  std::optional<BlockExchange> exchange_;
  std::deque<WorkRequest> in_flight_;  // they end in this order
};

}  // namespace deft::link::mpi_backend
