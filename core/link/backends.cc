#include "core/link/backends.h"

#include <algorithm>
#include <array>

namespace deft::link {
namespace {

constexpr std::array kBackends = {
    Backend{"gloo", Place::kNics, true, "host memory, any NIC with an IP address"},
    Backend{"ps", Place::kServers, true, "parameter servers: deftd --role server"},
#ifdef DEFT_MPI_MISSING
    Backend{"mpi", Place::kNicOrNone, false, DEFT_MPI_MISSING},
#else
    Backend{"mpi", Place::kNicOrNone, true, "host memory, Open MPI and what it knows: TCP, InfiniBand, ..."},
#endif
    Backend{"nccl", Place::kNics, false, "this version of Deft has no NCCL link; CUDA gradients go over gloo"},
};

std::string names(bool built_only) {
  std::string text;
  for (const Backend& backend : kBackends) {
    if (backend.built || !built_only) text += (text.empty() ? "" : ", ") + std::string(backend.name);
  }
  return text;
}

}  // namespace

std::span<const Backend> backends() { return kBackends; }

const Backend* find_backend(std::string_view name) {
  const auto found = std::ranges::find(kBackends, name, &Backend::name);
  return found == kBackends.end() ? nullptr : &*found;
}

Result<void> check_backend(std::string_view name) {
  const Backend* backend = find_backend(name);
  if (backend == nullptr) {
    return fail(ErrorKind::kInvalid, "there is no link backend '" + std::string(name) + "'; there are: " + names(false),
                "write for instance gloo:eth0,gloo:eth1 or auto");
  }
  if (backend->built) return {};
  return fail(ErrorKind::kUnavailable,
              "the link backend '" + std::string(name) + "' is not in this build: " + std::string(backend->summary),
              "use another one: " + names(true) + " (see deft check-build)");
}

}  // namespace deft::link
