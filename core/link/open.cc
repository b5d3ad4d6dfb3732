#include <string>

#include "core/link/gloo/factory.h"
#include "core/link/link.h"

namespace deft::link {

Result<std::unique_ptr<Link>> open_link(const LinkSpec& spec, const Group& group) {
  if (group.nodes == 0 || group.node >= group.nodes || (group.nodes > 1 && group.store == nullptr)) {
    return fail(ErrorKind::kInvalid, "a link needs a group with a store that this node belongs to");
  }
  if (spec.backend == "gloo") return gloo_backend::open(spec, group);
  return fail(ErrorKind::kUnavailable, "the link backend '" + spec.backend + "' is not part of this build",
              "backends of this build: gloo");
}

}  // namespace deft::link
