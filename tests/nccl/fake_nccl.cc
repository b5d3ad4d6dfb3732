// An NCCL without a GPU, for tests on machines that have none: a star of unix sockets with rank 0 in the middle, which
// reduces in the order of ranks. As the real one it connects in the background, runs collectives on a stream, and tells of
// failures by the communicator's state; a collective is in progress until it has been enqueued. Built as libnccl.so.2, so it is
// loaded as the real one is.
//
// FAKE_NCCL_VERSION stands for another version. With FAKE_NCCL_ONE_RANK_A_GPU=1 ranks that share a GPU are refused. With
// FAKE_NCCL_LINGER_MS=N a kernel that has failed or is aborted goes on writing to its data for so long. With FAKE_NCCL_SILENT_AFTER=N
// the network is lost after N collectives of a rank, and NCCL does not notice.
#include <nccl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/reduce/reduce.h"
#include "tests/nccl/fake_cuda.h"

namespace {

using deft::model::DType;
using deft::model::ReduceOp;

sockaddr_un address_of(const ncclUniqueId& id, socklen_t& bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, id.internal, 32);  // abstract: nothing is left behind
  bytes = offsetof(sockaddr_un, sun_path) + 33;
  return address;
}

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32: return DType::kFloat32;
    case ncclFloat64: return DType::kFloat64;
    case ncclFloat16: return DType::kFloat16;
    case ncclBfloat16: return DType::kBFloat16;
    case ncclInt32: return DType::kInt32;
    case ncclInt64: return DType::kInt64;
    case ncclInt8: return DType::kInt8;
    default: return DType::kUInt8;
  }
}

ReduceOp op_of(ncclRedOp_t op) {
  return op == ncclMin ? ReduceOp::kMin : op == ncclMax ? ReduceOp::kMax : ReduceOp::kSum;
}

int number_in(const char* variable, int otherwise) {
  const char* const given = std::getenv(variable);
  return given == nullptr ? otherwise : std::atoi(given);
}

// True if this rank of this communicator is the first one on the GPU; ranks are threads of one process here.
bool has_own_gpu(const ncclUniqueId& id, int device) {
  static std::mutex mutex;
  static auto* const taken = new std::set<std::pair<std::string, int>>;
  const std::lock_guard lock(mutex);
  return taken->emplace(std::string(id.internal, 32), device).second;
}

bool move_all(int fd, char* data, std::size_t bytes, bool out) {
  while (bytes > 0) {
    const ssize_t done = out ? send(fd, data, bytes, MSG_NOSIGNAL) : recv(fd, data, bytes, 0);
    if (done <= 0) return false;
    data += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<ncclComm> self;  // until it is aborted; what streams still run keeps it, too
  int rank = 0, ranks = 1, listener = -1;
  ncclUniqueId id{};
  std::vector<int> sockets;  // rank 0's: of all others; else one, to rank 0
  std::mutex mutex;          // guards the sockets against abort
  struct {
    std::condition_variable ended;
    int after = 0;  // collectives
  } silence;
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::thread working;  // connects, or enqueues a collective
  int device = 0;

  ~ncclComm() {
    for (const int fd : sockets)
      if (fd >= 0) close(fd);
    if (listener >= 0) close(listener);
  }

  void connect_all() {
    socklen_t bytes = 0;
    const sockaddr_un address = address_of(id, bytes);
    const auto* const raw = reinterpret_cast<const sockaddr*>(&address);
    if (rank == 0) {
      for (int i = 1; i < ranks && !aborted; ++i) {
        const int fd = accept(listener, nullptr, nullptr);
        int peer = 0;
        if (fd < 0 || !move_all(fd, reinterpret_cast<char*>(&peer), sizeof peer, false)) return;
        const std::lock_guard lock(mutex);
        sockets[static_cast<std::size_t>(peer)] = fd;
      }
    } else {
      const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      {
        const std::lock_guard lock(mutex);
        sockets[0] = fd;
      }
      while (!aborted && connect(fd, raw, bytes) != 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (!move_all(fd, reinterpret_cast<char*>(&rank), sizeof rank, true)) return;
    }
    if (!aborted) state = ncclSuccess;
  }

  // A kernel whose messages come no more.
  void wait_for_abort() {
    std::unique_lock lock(mutex);
    silence.ended.wait(lock, [this] { return aborted.load(); });
  }

  void stop() {
    aborted = true;
    const std::lock_guard lock(mutex);
    silence.ended.notify_all();
    if (listener >= 0) shutdown(listener, SHUT_RDWR);
    for (const int fd : sockets)
      if (fd >= 0) shutdown(fd, SHUT_RDWR);
  }

  bool reduce_all(char* data, std::size_t count, DType dtype, ReduceOp op) {
    const std::size_t bytes = count * deft::model::dtype_bytes(dtype);
    if (rank != 0) return move_all(sockets[0], data, bytes, true) && move_all(sockets[0], data, bytes, false);
    std::vector<std::vector<char>> received(static_cast<std::size_t>(ranks));
    std::vector<const std::byte*> inputs{reinterpret_cast<std::byte*>(data)};
    for (std::size_t peer = 1; peer < received.size(); ++peer) {
      received[peer].resize(bytes);
      if (!move_all(sockets[peer], received[peer].data(), bytes, false)) return false;
      inputs.push_back(reinterpret_cast<std::byte*>(received[peer].data()));
    }
    deft::reduce::reduce(reinterpret_cast<std::byte*>(data), inputs, count, dtype, op);
    return send_all(data, bytes, 0);
  }

  bool send_all(char* data, std::size_t bytes, std::size_t but) {
    for (std::size_t peer = 1; peer < sockets.size(); ++peer)
      if (peer != but && !move_all(sockets[peer], data, bytes, true)) return false;
    return true;
  }

  bool broadcast(char* data, std::size_t bytes, int root) {
    if (rank == 0 && root != 0 && !move_all(sockets[static_cast<std::size_t>(root)], data, bytes, false)) return false;
    if (rank == 0) return send_all(data, bytes, static_cast<std::size_t>(root));
    return move_all(sockets[0], data, bytes, rank == root);
  }

  // A kernel that reduces or sends `data`; enqueued a little later, by another thread.
  template <typename Work>
  ncclResult_t enqueue(cudaStream_t stream, char* data, std::size_t bytes, Work work) {
    if (fake_cuda_device_of(stream) != device) return ncclInvalidUsage;
    if (state != ncclSuccess) return state;
    working.join();
    state = ncclInProgress;
    const int most = number_in("FAKE_NCCL_SILENT_AFTER", -1);
    const bool silent = most >= 0 && ++silence.after > most;
    working = std::thread([kept = self, stream, data, bytes, work, silent] {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      std::function<void()> kernel = [kept, data, bytes, work, silent] {
        if (silent) return kept->wait_for_abort();
        if (work()) return;
        kept->state = ncclRemoteError;
        linger(data, bytes);
      };
      fake_cuda_enqueue(stream, &kernel);
      ncclResult_t enqueuing = ncclInProgress;
      kept->state.compare_exchange_strong(enqueuing, ncclSuccess);  // unless the kernel has failed already
    });
    return ncclInProgress;
  }

  static void linger(char* data, std::size_t bytes) {
    const int ms = number_in("FAKE_NCCL_LINGER_MS", 0);
    for (int i = 0; i < ms; ++i) {
      std::memset(data, i, bytes);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
};

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = number_in("FAKE_NCCL_VERSION", NCCL_VERSION_CODE);
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::random_device random;
  for (char& c : id->internal) c = static_cast<char>('a' + random() % 26);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote error" : "an NCCL error";
}
const char* ncclGetLastError(ncclComm_t) { return "a peer has gone"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  int device = 0;
  cudaGetDevice(&device);
  if (number_in("FAKE_NCCL_ONE_RANK_A_GPU", 0) == 1 && !has_own_gpu(id, device)) return ncclInvalidUsage;
  auto* const made = *comm = new ncclComm;
  made->self.reset(made);
  made->rank = rank;
  made->ranks = ranks;
  made->id = id;
  made->device = device;
  made->sockets.assign(rank == 0 ? static_cast<std::size_t>(ranks) : 1, -1);
  if (rank == 0) {
    socklen_t bytes = 0;
    const sockaddr_un address = address_of(id, bytes);
    made->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(made->listener, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) return ncclSystemError;
    listen(made->listener, ranks);
  }
  made->working = std::thread([made] { made->connect_all(); });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->stop();
  comm->working.join();
  const auto last = std::move(comm->self);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (in != out) return ncclInvalidArgument;
  auto* const data = static_cast<char*>(out);
  return comm->enqueue(stream, data, count * deft::model::dtype_bytes(dtype_of(type)),
                       [=] { return comm->reduce_all(data, count, dtype_of(type), op_of(op)); });
}

ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  if (in != out) return ncclInvalidArgument;
  const std::size_t bytes = count * deft::model::dtype_bytes(dtype_of(type));
  auto* const data = static_cast<char*>(out);
  return comm->enqueue(stream, data, bytes, [=] { return comm->broadcast(data, bytes, root); });
}

}  // extern "C"
