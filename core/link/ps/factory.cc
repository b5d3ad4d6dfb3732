#include "core/link/ps/factory.h"

#include "core/link/ps/link_impl.h"

namespace deft::link::ps_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const Group& group) {
  auto exchange = Exchange::connect(spec, group);
  if (!exchange) return tl::unexpected(exchange.error().in("open " + spec.name()));
  return std::make_unique<LinkImpl>(spec.name(), *std::move(exchange));
}

}  // namespace deft::link::ps_backend
