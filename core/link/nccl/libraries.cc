#include "core/link/nccl/libraries.h"

#include <dlfcn.h>

#include <array>
#include <span>

namespace deft::link::nccl_backend {
namespace {

constexpr std::array kNcclNames = {"libnccl.so.2"};
constexpr std::array kCudaNames = {"libcudart.so.13", "libcudart.so.12"};

// The copy that the process has already, or else the first one that the loader finds. Never unloaded.
void* open_one(std::span<const char* const> names) {
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD)) return library;
  for (const char* name : names)
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  return nullptr;
}

tl::unexpected<Error> missing(const std::string& name) {
  return fail(ErrorKind::kUnavailable, name + " cannot be loaded in this worker",
              "install it (pip install nvidia-nccl-cu13 beside PyTorch, or NVIDIA's packages) and name its folder in "
              "LD_LIBRARY_PATH, or use gloo links");
}

template <typename Function>
Result<void> find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return {};
  return fail(ErrorKind::kUnavailable, std::string("the loaded NCCL or CUDA runtime has no function ") + name,
              "install NCCL 2.14 or newer and CUDA 12 or newer");
}

}  // namespace

Result<void> Libraries::bind() {
  void* const cuda = open_one(kCudaNames);
  if (cuda == nullptr) return missing(kCudaNames.front());
  void* const nccl = open_one(kNcclNames);
  if (nccl == nullptr) return missing(kNcclNames.front());
#define DEFT_FIND_NCCL(name) \
  if (auto found = find(nccl, #name, name); !found) return found;
#define DEFT_FIND_CUDA(name) \
  if (auto found = find(cuda, #name, name); !found) return found;
  DEFT_NCCL_FUNCTIONS(DEFT_FIND_NCCL)
  DEFT_CUDA_FUNCTIONS(DEFT_FIND_CUDA)
#undef DEFT_FIND_NCCL
#undef DEFT_FIND_CUDA
  if (auto found = find(cuda, "cudaMalloc", cudaMalloc); !found) return found;
  if (auto found = find(cuda, "cudaMemcpyAsync", cudaMemcpyAsync); !found) return found;
  if (auto found = find(cuda, "cudaPointerGetAttributes", cudaPointerGetAttributes); !found) return found;
  return find(cuda, "cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId);
}

Result<const Libraries*> Libraries::load() {
  static auto* libraries = new Libraries;
  static const Result<void> bound = libraries->bind();
  if (!bound) return tl::unexpected(bound.error());
  return libraries;
}

Result<void> Libraries::check(cudaError_t result, const char* call) const {
  if (result == cudaSuccess) return {};
  cudaGetLastError();  // so that the framework does not meet it
  return fail(ErrorKind::kUnavailable, std::string(call) + ": " + cudaGetErrorString(result), "see nvidia-smi");
}

Result<void> Libraries::check(ncclResult_t result, const char* call, ncclComm_t communicator) const {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  std::string text = std::string(call) + ": " + ncclGetErrorString(result);
  const char* const last = ncclGetLastError(communicator);
  if (last != nullptr && *last != '\0') text += ": " + std::string(last);
  const bool usage = result == ncclInvalidUsage || result == ncclInvalidArgument;
  return fail(usage ? ErrorKind::kInvalid : ErrorKind::kLost, text, "NCCL_DEBUG=INFO makes NCCL tell more");
}

std::string version_text(int version) {
  // Since 2.9 a number has two more digits for the minor version.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version % 10000 / 100 : version % 1000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

}  // namespace deft::link::nccl_backend
