#include "tests/nccl/fake_cuda.h"

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace {

std::atomic<unsigned long> copies{0};
std::mutex memory_mutex;
struct Block {
  std::size_t bytes;
  int device;
};
std::map<const char*, Block>& device_memory() {
  static auto* blocks = new std::map<const char*, Block>;
  return *blocks;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t remembered(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void enqueue(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      ++pending_;
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return pending_ == 0;
  }
  [[nodiscard]] int device() const { return device_; }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ended_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const auto work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
      --pending_;
    }
  }

  const int device_ = current_device;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  int pending_ = 0;
  bool ended_ = false;
  std::thread thread_;
};

Stream* stream_of(cudaStream_t stream) { return reinterpret_cast<Stream*>(stream); }

int device_count() {
  const char* given = std::getenv("FAKE_CUDA_DEVICES");
  return given == nullptr ? 1 : std::atoi(given);
}

}  // namespace

extern "C" {

unsigned long fake_cuda_copies();
unsigned long fake_cuda_copies() { return copies; }

int fake_cuda_device_of(cudaStream_t stream) { return stream_of(stream)->device(); }

void fake_cuda_enqueue(cudaStream_t stream, std::function<void()>* work) { stream_of(stream)->enqueue(*work); }

const char* cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "a fake CUDA error"; }
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return remembered(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device >= device_count()) return remembered(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02x:00.0", 0x10 + device);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  *stream = reinterpret_cast<cudaStream_t>(new Stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream_of(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return remembered(stream_of(stream)->idle() ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  const std::lock_guard lock(memory_mutex);
  device_memory()[static_cast<char*>(*memory)] = {bytes, current_device};
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  {
    const std::lock_guard lock(memory_mutex);
    device_memory().erase(static_cast<char*>(memory));
  }
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  ++copies;
  stream_of(stream)->enqueue([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const std::lock_guard lock(memory_mutex);
  const auto* const address = static_cast<const char*>(pointer);
  auto block = device_memory().upper_bound(address);
  const bool device =
      block != device_memory().begin() && address < std::prev(block)->first + std::prev(block)->second.bytes;
  attributes->device = device ? std::prev(block)->second.device : -1;
  attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return cudaSuccess;
}

}  // extern "C"
