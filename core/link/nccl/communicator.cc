#include "core/link/nccl/communicator.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "core/link/nccl/rendezvous.h"

namespace deft::link::nccl_backend {
namespace {

constexpr auto kFirstPause = std::chrono::microseconds(20);
constexpr TimeUs kDrainUs = 5'000'000;  // for the work of a stream when nobody waits for peers any more
constexpr auto kLongestPause = std::chrono::microseconds(500);

// Polls `done` with growing pauses until it gives a result.
template <typename Done>
auto poll(Done done) -> typename decltype(done())::value_type {
  auto pause = kFirstPause;
  while (true) {
    if (auto result = done()) return *result;
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(pause * 3 / 2, kLongestPause);
  }
}

// NCCL reads the variable when it first looks for NICs, once a process. The user's own value stays.
void name_nics(const std::string& interface) {
  if (interface.empty()) return;
  std::string names = "=" + interface;
  std::ranges::replace(names, '+', ',');
  setenv("NCCL_SOCKET_IFNAME", names.c_str(), 0);
}

// Runs `body` on a thread of its own: it may make a GPU current, and the caller's own stays current.
template <typename Body>
auto on_own_thread(Body body) {
  std::optional<decltype(body())> result;
  std::thread([&] { result = body(); }).join();
  return *std::move(result);
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::connect(const LinkSpec& spec, const LinkGroup& group) {
  const auto libraries = Libraries::load();
  if (!libraries) return tl::unexpected(libraries.error());
  std::unique_ptr<Communicator> made(new Communicator(**libraries, group));
  name_nics(spec.interface);
  if (auto ok = made->find_devices(); !ok) return tl::unexpected(ok.error());
  if (auto ok = on_own_thread([&] { return made->meet_all(group); }); !ok) return tl::unexpected(ok.error());
  return made;
}

// The GPU that the calling thread has made current, or CUDA's default.
Result<void> Communicator::find_devices() {
  if (auto ok = libraries_.check(libraries_.cudaGetDeviceCount(&devices_), "cudaGetDeviceCount"); !ok) return ok;
  if (devices_ == 0)
    return fail(ErrorKind::kUnavailable, "this worker sees no GPU", "see nvidia-smi; unset CUDA_VISIBLE_DEVICES");
  return libraries_.check(libraries_.cudaGetDevice(&device_), "cudaGetDevice");
}

Result<void> Communicator::use_device() { return libraries_.check(libraries_.cudaSetDevice(device_), "cudaSetDevice"); }

Result<void> Communicator::meet_all(const LinkGroup& group) {
  for (std::uint32_t peer = 0; peer < members_; ++peer)
    if (peer != own_) others_ += (others_.empty() ? "" : ", ") + group.member + " " + std::to_string(peer);
  RankInfo own;
  own.devices = devices_;
  own.machine = machine_id();
  if (auto ok = libraries_.check(libraries_.ncclGetVersion(&own.version), "ncclGetVersion"); !ok) return ok;
  auto asked =
      libraries_.check(libraries_.cudaDeviceGetPCIBusId(own.gpu.data(), static_cast<int>(own.gpu.size()), device_),
                       "cudaDeviceGetPCIBusId");
  if (!asked) return asked;
  if (own_ == 0)
    if (auto ok = libraries_.check(libraries_.ncclGetUniqueId(&own.id), "ncclGetUniqueId"); !ok) return ok;
  const auto all = exchange(group, own);
  if (!all) return tl::unexpected(all.error());
  device_ = device_of(*all, own_, device_);
  return join(all->front().id, group);
}

Result<void> Communicator::join(const ncclUniqueId& id, const LinkGroup& group) {
  if (auto ok = use_device(); !ok) return ok;
  auto made = libraries_.check(libraries_.cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                               "cudaStreamCreateWithFlags");
  if (!made) return made;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  constexpr auto* kName = "ncclCommInitRankConfig";
  made = libraries_.check(libraries_.ncclCommInitRankConfig(&communicator_, static_cast<int>(members_), id,
                                                            static_cast<int>(own_), &config),
                          kName);
  if (!made) return made;
  return settle(kName, &group);
}

// Waits until the communicator is no longer busy, by the deadline of `group` if there is one.
Result<void> Communicator::settle(const char* name, const LinkGroup* group) {
  return poll([&]() -> std::optional<Result<void>> {
    ncclResult_t state = ncclSuccess;
    auto asked = libraries_.check(libraries_.ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError",
                                  communicator_);
    if (asked) asked = libraries_.check(state, name, communicator_);
    if (!asked) return asked;
    if (state == ncclSuccess) return asked;
    if (aborted_) return fail(ErrorKind::kLost, std::string(name) + " was aborted");
    if (group != nullptr && group->left_us() < 0)
      return fail(ErrorKind::kTimeout, "NCCL did not connect this one with " + others_ + " in time",
                  "check that a firewall lets TCP through between the nodes; NCCL_DEBUG=INFO tells more");
    return std::nullopt;
  });
}

Result<void> Communicator::run(const char* name, const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call) {
  if (auto ok = libraries_.check(call(communicator_, stream_), name, communicator_); !ok) return ok;
  if (auto ok = settle(name, nullptr); !ok) return ok;
  return wait(name);
}

Result<void> Communicator::copy(void* to, const void* from, std::size_t bytes) {
  return libraries_.check(libraries_.cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
}

// True if the stream has something to do.
Result<bool> Communicator::busy(const char* name) const {
  const cudaError_t state = libraries_.cudaStreamQuery(stream_);
  if (state == cudaSuccess) return false;
  if (state != cudaErrorNotReady) return tl::unexpected(libraries_.check(state, name).error());
  libraries_.cudaGetLastError();  // CUDA remembers this answer as an error
  return true;
}

Result<void> Communicator::wait(const char* name) {
  TimeUs told_us = MonotonicClock::now();
  return poll([&]() -> std::optional<Result<void>> {
    const auto working = busy(name);
    if (!working) return tl::unexpected(working.error());
    ncclResult_t error = ncclSuccess;
    auto asked = libraries_.check(libraries_.ncclCommGetAsyncError(communicator_, &error), "ncclCommGetAsyncError",
                                  communicator_);
    if (asked) asked = libraries_.check(error, name, communicator_);
    if (!asked || !*working) return asked;  // a kernel that NCCL gave up on ends, too
    if (aborted_) return fail(ErrorKind::kLost, std::string(name) + " was aborted");
    if (const TimeUs now_us = MonotonicClock::now(); on_waiting_ && now_us - told_us >= LinkGroup::kWaitingUs) {
      told_us = now_us;
      on_waiting_();
    }
    return std::nullopt;
  });
}

void Communicator::halt() {
  if (communicator_ == nullptr) return;
  on_own_thread([&] {
    static_cast<void>(use_device());
    return libraries_.ncclCommAbort(std::exchange(communicator_, nullptr));
  });
  const TimeUs deadline_us = MonotonicClock::now() + kDrainUs;
  while (busy("drain").value_or(false) && MonotonicClock::now() < deadline_us)
    std::this_thread::sleep_for(kLongestPause);
}

Result<bool> Communicator::is_device_memory(const void* data) const {
  // Room for a newer runtime's structure behind ours.
  struct {
    cudaPointerAttributes attributes;
    char room[256];
  } asked{};
  if (libraries_.cudaPointerGetAttributes(&asked.attributes, data) != cudaSuccess) {
    libraries_.cudaGetLastError();
    return false;
  }
  if (asked.attributes.type == cudaMemoryTypeManaged) return true;
  if (asked.attributes.type != cudaMemoryTypeDevice) return false;
  if (asked.attributes.device == device_) return true;
  return fail(ErrorKind::kInvalid,
              "this worker's NCCL link is on GPU " + std::to_string(device_) + ", and the data on GPU " +
                  std::to_string(asked.attributes.device),
              "call torch.cuda.set_device before deft.torch.init");
}

Communicator::~Communicator() {
  halt();
  if (stream_ != nullptr) libraries_.cudaStreamDestroy(stream_);
}

}  // namespace deft::link::nccl_backend
