#include "core/link/factories.h"

#include "core/link/nccl/link_impl.h"

namespace deft::link::nccl_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group) {
  auto communicator = Communicator::connect(spec, group);
  if (!communicator) return tl::unexpected(communicator.error().in(spec.name()));
  return std::make_unique<LinkImpl>(spec, group, std::move(*communicator));
}

Result<std::string> usable() {
  const auto libraries = Libraries::load();
  if (!libraries) return tl::unexpected(libraries.error());
  int version = 0, devices = 0;
  if (auto ok = (*libraries)->check((*libraries)->ncclGetVersion(&version), "ncclGetVersion"); !ok)
    return tl::unexpected(ok.error());
  if (auto ok = (*libraries)->check((*libraries)->cudaGetDeviceCount(&devices), "cudaGetDeviceCount"); !ok)
    return tl::unexpected(ok.error());
  return "NCCL " + version_text(version) + ", " + std::to_string(devices) + (devices == 1 ? " GPU" : " GPUs");
}

}  // namespace deft::link::nccl_backend
