#include "core/link/workertcp/factory.h"

#include "core/link/workertcp/link_impl.h"

namespace deft::link::workertcp_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const Group& group) {
  auto mesh = Mesh::connect(spec, group);
  if (!mesh) return tl::unexpected(mesh.error().in(spec.name()));
  return std::make_unique<LinkImpl>(spec.name(), std::move(*mesh), group.node_of);
}

}  // namespace deft::link::workertcp_backend
