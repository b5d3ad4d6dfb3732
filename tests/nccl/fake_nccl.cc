// An NCCL without a GPU, for tests on machines that have none: a star of unix sockets with rank 0 in the middle, which
// reduces in the order of ranks. As the real one it connects in the background, runs collectives on a stream, and tells of
// failures by the communicator's state. Built as libnccl.so.2, so it is loaded as the real one is.
//
// FAKE_NCCL_VERSION stands for another version.
#include <nccl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
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
  std::atomic<bool> aborted{false};
  std::atomic<ncclResult_t> state{ncclInProgress};
  std::thread connecting;

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

  void stop() {
    aborted = true;
    const std::lock_guard lock(mutex);
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

  template <typename Work>
  ncclResult_t enqueue(cudaStream_t stream, Work work) {
    std::function<void()> on_stream = [kept = self, work] {
      if (!work()) kept->state = ncclRemoteError;
    };
    fake_cuda_enqueue(stream, &on_stream);
    return ncclSuccess;
  }
};

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const char* const given = std::getenv("FAKE_NCCL_VERSION");
  *version = given == nullptr ? NCCL_VERSION_CODE : std::atoi(given);
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
  auto* const made = *comm = new ncclComm;
  made->self.reset(made);
  made->rank = rank;
  made->ranks = ranks;
  made->id = id;
  made->sockets.assign(rank == 0 ? static_cast<std::size_t>(ranks) : 1, -1);
  if (rank == 0) {
    socklen_t bytes = 0;
    const sockaddr_un address = address_of(id, bytes);
    made->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(made->listener, reinterpret_cast<const sockaddr*>(&address), bytes) != 0) return ncclSystemError;
    listen(made->listener, ranks);
  }
  made->connecting = std::thread([made] { made->connect_all(); });
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  *state = comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->stop();
  comm->connecting.join();
  const auto last = std::move(comm->self);
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (in != out) return ncclInvalidArgument;
  return comm->enqueue(stream,
                       [=] { return comm->reduce_all(static_cast<char*>(out), count, dtype_of(type), op_of(op)); });
}

ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  if (in != out) return ncclInvalidArgument;
  const std::size_t bytes = count * deft::model::dtype_bytes(dtype_of(type));
  return comm->enqueue(stream, [=] { return comm->broadcast(static_cast<char*>(out), bytes, root); });
}

}  // extern "C"
