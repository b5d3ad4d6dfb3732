#include "core/link/factories.h"

#include "core/link/gloo/link_impl.h"

namespace deft::link::gloo_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group) {
  if (group.nodes == 1) return std::make_unique<LinkImpl>(spec, group, nullptr, nullptr);
  auto main = Mesh::connect(spec, group);
  if (!main) return tl::unexpected(main.error().in("open " + spec.name()));
  LinkGroup beside = group;
  beside.prefix += "priority/";
  auto priority = Mesh::connect(spec, beside);
  if (!priority) return tl::unexpected(priority.error().in("open " + spec.name()));
  (*priority)->go_first();
  return std::make_unique<LinkImpl>(spec, group, *std::move(main), *std::move(priority));
}

}  // namespace deft::link::gloo_backend
