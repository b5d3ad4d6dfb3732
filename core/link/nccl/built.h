// True if this build has the NCCL link: nccl.h and the CUDA headers were there when it was made.
#pragma once

#include <string_view>

namespace deft::link::nccl_backend {

#ifdef DEFT_WITH_NCCL
inline constexpr bool kBuilt = true;
inline constexpr std::string_view kSummary =
    "GPU memory, in the worker's process; libnccl and libcudart are loaded when asked for";
#else
inline constexpr bool kBuilt = false;
inline constexpr std::string_view kSummary =
    "built without it: by -DDEFT_NCCL=OFF, or because nccl.h or cuda_runtime_api.h was not found";
#endif

}  // namespace deft::link::nccl_backend
