#include "core/link/backends.h"

#include <algorithm>
#include <array>

#include "core/link/nccl/built.h"

namespace deft::link {
namespace {

constexpr std::array kBackends = {
    Backend{.name = "gloo",
            .place = Place::kNics,
            .built = true,
            .summary = "host memory, any NIC with an IP address",
            .composes = true,
            .adds_encoded = true,
            .encryption = Encryption::kPeerSockets,
            // Two meshes, and an encrypted socket is three. Their event loops and wake-ups.
            .descriptors = {.of_link = 8, .for_each_peer = 2, .for_each_encrypted = 6}},
    Backend{.name = "ps",
            .place = Place::kServers,
            .built = true,
            .summary = "parameter servers: deftd server",
            .adds_encoded = true,
            .encryption = Encryption::kDaemonKey,
            .receives_unasked = true,
            .descriptors = {.of_link = 8, .for_each_peer = 3, .for_each_encrypted = 3}},
#ifdef DEFT_MPI_MISSING
    Backend{.name = "mpi",
            .place = Place::kNicOrNone,
            .built = false,
            .summary = DEFT_MPI_MISSING,
            .composes = true,
            .adds_encoded = true},
#else
    Backend{.name = "mpi",
            .place = Place::kNicOrNone,
            .built = true,
            .summary = "host memory, Open MPI and what it knows: TCP, InfiniBand, ...",
            .composes = true,
            .adds_encoded = true,
            .descriptors = {.of_link = 8}},  // connections are those of deft-mpi
#endif
    Backend{.name = "nccl",
            .place = Place::kNicsTogether,
            .built = nccl_backend::kBuilt,
            .summary = nccl_backend::kSummary,
            .takes_device_memory = true},
    Backend{.name = "tcp",
            .place = Place::kNics,
            .built = true,
            .summary = "TCP between the workers themselves; to test in-process links without a GPU and to compare with",
            .composes = true,
            .adds_encoded = true,
            .encryption = Encryption::kPeerSockets},
};

static_assert(std::ranges::all_of(kBackends, [](const Backend& backend) {
  return (backend.composes && !backend.runs_in_workers()) == model::has_halves(backend.name);
}));

std::string names(bool built_only) {
  std::string text;
  for (const Backend& backend : kBackends) {
    if (backend.built || !built_only) text += (text.empty() ? "" : ", ") + std::string(backend.name);
  }
  return text;
}

}  // namespace

std::span<const Backend> backends() { return kBackends; }

bool receives_unasked(std::string_view link) {
  const Backend* const backend = find_backend(model::backend_of(link));
  return backend != nullptr && backend->receives_unasked;
}

const Backend* find_backend(std::string_view name) {
  const auto found = std::ranges::find(kBackends, name, &Backend::name);
  return found == kBackends.end() ? nullptr : &*found;
}

Result<void> check_backend(std::string_view name) {
  const Backend* backend = find_backend(name);
  if (name == kFormerTcp)
    return fail(ErrorKind::kInvalid, "the link backend 'workertcp' is called 'tcp' now", "write for instance tcp:eth0");
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
