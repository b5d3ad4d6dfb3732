#include "core/link/gloo/factory.h"

#include "core/link/gloo/link_impl.h"

namespace deft::link::gloo_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const Group& group) {
  auto mesh = Mesh::connect(spec, group);
  if (!mesh) return tl::unexpected(mesh.error().in("open " + spec.name()));
  return std::make_unique<LinkImpl>(spec.name(), *std::move(mesh));
}

}  // namespace deft::link::gloo_backend
