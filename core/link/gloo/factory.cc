#include "core/link/gloo/factory.h"

#include "core/link/gloo/link_impl.h"

namespace deft::link::gloo_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const Group& group) {
  auto mesh = Mesh::connect(spec, group);
  if (!mesh) return tl::unexpected(mesh.error().in("open " + spec.name()));
  if (group.nodes == 1) return std::make_unique<LinkImpl>(spec.name(), *std::move(mesh));
  // Connections of its own, so that what is small waits neither behind what their senders have queued nor, as TCP queues
  // little at the NIC, behind much of it there.
  Group beside = group;
  beside.prefix += "express/";
  auto express = Mesh::connect(spec, beside);
  if (!express) return tl::unexpected(express.error().in("open " + spec.name()));
  (*express)->go_first();
  return std::make_unique<LinkImpl>(spec.name(), *std::move(mesh),
                                    std::make_unique<LinkImpl>(spec.name(), *std::move(express)));
}

}  // namespace deft::link::gloo_backend
