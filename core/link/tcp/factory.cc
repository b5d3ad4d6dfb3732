#include "core/link/factories.h"

#include "core/link/tcp/link_impl.h"

namespace deft::link::tcp_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group) {
  auto transport = Transport::connect(spec, group);
  if (!transport) return tl::unexpected(transport.error().in(spec.name()));
  return std::make_unique<LinkImpl>(spec, group, std::move(*transport));
}

}  // namespace deft::link::tcp_backend
