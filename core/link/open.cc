#include <string>

#include "core/link/backends.h"
#include "core/link/factories.h"
#include "core/link/link.h"
#include "core/model/link_names.h"

namespace deft::link {

Result<std::unique_ptr<Link>> open_link(const LinkSpec& spec, const LinkGroup& group) {
  if (group.nodes == 0 || group.node >= group.nodes || (group.nodes > 1 && group.store == nullptr)) {
    return fail(ErrorKind::kInvalid, "a link needs a group with a store that this node belongs to");
  }
  if (spec.backend == "gloo") return gloo_backend::open(spec, group);
  if (spec.backend == "ps") return ps_backend::open(spec, group);
  if (spec.backend == "mpi") {
    if (auto built = check_backend("mpi"); !built) return tl::unexpected(built.error());
    return mpi_backend::open(spec, group);
  }
  if (model::runs_in_workers(spec.backend)) return open_worker_link(spec, group);
  auto known = check_backend(spec.backend);
  if (known) known = fail(ErrorKind::kInternal, "the link backend '" + spec.backend + "' cannot be opened");
  return tl::unexpected(known.error());
}

}  // namespace deft::link
