#include "core/link/factories.h"

#include "core/link/ps/link_impl.h"

namespace deft::link::ps_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group) {
  auto engine = Engine::connect(spec, group);
  if (!engine) return tl::unexpected(engine.error().in("open " + spec.name()));
  return std::make_unique<LinkImpl>(spec, group, *std::move(engine));
}

}  // namespace deft::link::ps_backend
