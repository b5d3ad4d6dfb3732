// A CUDA runtime without a GPU, for tests on machines that have none: "device" memory is host memory that it knows, and a
// stream is a thread that runs what is enqueued, in order. Built as libcudart.so.13, so it is loaded as the real one is.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

// The GPU that was current when the stream was made.
extern "C" int fake_cuda_device_of(cudaStream_t stream);

// Runs `work` on the stream's thread behind what is enqueued already. For the fake NCCL.
extern "C" void fake_cuda_enqueue(cudaStream_t stream, std::function<void()>* work);
