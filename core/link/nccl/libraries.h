// NCCL and the CUDA runtime, loaded when the first link asks for them. So a program that links Deft needs neither.
//
//   auto libraries = Libraries::load();                       // an error names the library and the places
//   (*libraries)->check((*libraries)->cudaStreamQuery(stream), "...");
//
// A framework that has loaded its own copies (PyTorch has) shares them with Deft: they are found by their sonames.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

#include "core/base/status.h"

namespace deft::link::nccl_backend {

// One row a function: its members are named and typed as the functions are.
// clang-format off
#define DEFT_NCCL_FUNCTIONS(X)                                                              \
  X(ncclGetVersion) X(ncclGetUniqueId) X(ncclGetErrorString) X(ncclGetLastError)            \
  X(ncclCommInitRankConfig) X(ncclCommGetAsyncError) X(ncclCommAbort) X(ncclAllReduce)      \
  X(ncclBroadcast)
#define DEFT_CUDA_FUNCTIONS(X)                                                              \
  X(cudaGetErrorString) X(cudaGetDeviceCount) X(cudaGetDevice) X(cudaSetDevice)             \
  X(cudaStreamCreateWithFlags) X(cudaStreamDestroy) X(cudaStreamQuery) X(cudaFree)          \
  X(cudaGetLastError)
// clang-format on

class Libraries {
 public:
  // Loads both once a process. They stay loaded.
  static Result<const Libraries*> load();

#define DEFT_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses): a declaration
  DEFT_NCCL_FUNCTIONS(DEFT_MEMBER)
  DEFT_CUDA_FUNCTIONS(DEFT_MEMBER)
#undef DEFT_MEMBER
  // Headers of some versions overload these for C++, so each has a type of its own here.
  cudaError_t (*cudaMalloc)(void**, std::size_t) = nullptr;
  cudaError_t (*cudaMemcpyAsync)(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) = nullptr;
  cudaError_t (*cudaPointerGetAttributes)(cudaPointerAttributes*, const void*) = nullptr;
  cudaError_t (*cudaDeviceGetPCIBusId)(char*, int, int) = nullptr;

  // kUnavailable with the runtime's own text for anything but success.
  [[nodiscard]] Result<void> check(cudaError_t result, const char* call) const;
  // kLost with NCCL's own texts; ncclInProgress counts as success.
  [[nodiscard]] Result<void> check(ncclResult_t result, const char* call, ncclComm_t communicator = nullptr) const;

 private:
  Libraries() = default;
  Result<void> bind();
};

// "2.27.3", from NCCL's number.
std::string version_text(int version);

}  // namespace deft::link::nccl_backend
