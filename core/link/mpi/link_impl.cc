#include "core/link/mpi/link_impl.h"

#include <utility>

namespace deft::link::mpi_backend {

LinkImpl::LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Transport> transport)
    : Link(spec.name(), group, Engine::kDepth), transport_(std::move(transport)) {
  if (!transport_) return;
  engine_.emplace(*transport_);
  exchange_.emplace(*transport_);
}

// An exchange of blocks has the link alone, and runs when it is waited for.
Result<void> LinkImpl::start(const WorkRequest& request) {
  if (request.reduces() && !engine_->start(request)) return tl::unexpected(*transport_->failure());
  in_flight_.push_back(request);
  return {};
}

Result<std::optional<std::uint64_t>> LinkImpl::await() {
  const WorkRequest& oldest = in_flight_.front();
  const bool ended =
      oldest.reduces() ? engine_->finish() : exchange_->share(oldest, oldest.blocks(transport_->nodes()));
  if (!ended) return tl::unexpected(*transport_->failure());
  const std::uint64_t id = oldest.id;
  in_flight_.pop_front();
  return id;
}

}  // namespace deft::link::mpi_backend
