#include "core/link/backends.h"
#include "core/link/factories.h"
#include "core/link/link.h"

namespace deft::link {

Result<std::unique_ptr<Link>> open_worker_link(const LinkSpec& spec, const LinkGroup& group) {
  if (spec.backend == "tcp") return tcp_backend::open(spec, group);
  if (auto known = check_backend(spec.backend); !known) return tl::unexpected(known.error());
  if (spec.backend == "nccl") return nccl_backend::open(spec, group);
  return fail(ErrorKind::kInternal, "links of '" + spec.backend + "' do not run in workers");
}

}  // namespace deft::link
