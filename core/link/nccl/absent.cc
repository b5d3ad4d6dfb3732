// The NCCL link of a build without nccl.h or the CUDA headers: it says so.
#include "core/link/factories.h"
#include "core/link/nccl/built.h"

namespace deft::link::nccl_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& /*group*/) {
  return fail(ErrorKind::kUnavailable, "the link " + spec.name() + " cannot be opened: " + std::string(kSummary));
}

Result<std::string> usable() { return fail(ErrorKind::kUnavailable, std::string(kSummary)); }

}  // namespace deft::link::nccl_backend
