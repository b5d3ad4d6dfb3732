#include "core/link/nccl/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <thread>

#include "core/link/rendezvous.h"

namespace deft::link::nccl_backend {
namespace {

constexpr auto kFirstPause = std::chrono::microseconds(20);
constexpr TimeUs kDrainUs = 5'000'000;  // for what a stream has to do when nobody waits for peers any more
constexpr auto kLongestPause = std::chrono::microseconds(500);

// What each rank publishes; rank 0's id is the one that counts.
struct Introduction {
  std::uint64_t magic = 0x3143434e54464544;  // "DEFTNCC1"
  std::int32_t version = 0;
  std::uint32_t unused = 0;
  ncclUniqueId id{};
};

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

// NCCL reads the variable when it first looks for NICs, once a process; what the user has set stays.
void name_nics(const std::string& interface) {
  if (interface.empty()) return;
  std::string names = "=" + interface;
  std::ranges::replace(names, '+', ',');
  setenv("NCCL_SOCKET_IFNAME", names.c_str(), 0);
}

Result<Introduction> read_introduction(const std::vector<std::byte>& value, const std::string& who) {
  Introduction introduction;
  if (value.size() == sizeof introduction) std::memcpy(&introduction, value.data(), sizeof introduction);
  if (value.size() != sizeof introduction || introduction.magic != Introduction{}.magic)
    return fail(ErrorKind::kViolation, who + " published no NCCL introduction");
  return introduction;
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::connect(const LinkSpec& spec, const Group& group) {
  const auto libraries = Libraries::load();
  if (!libraries) return tl::unexpected(libraries.error());
  std::unique_ptr<Communicator> made(new Communicator(**libraries, group.node, group.nodes));
  if (auto ok = made->choose_device(); !ok) return tl::unexpected(ok.error());
  if (auto ok = made->meet_all(spec, group); !ok) return tl::unexpected(ok.error());
  return made;
}

// The GPU that the worker has made current; of one that has not, CUDA's default.
Result<void> Communicator::choose_device() {
  int count = 0;
  if (auto ok = libraries_.check(libraries_.cudaGetDeviceCount(&count), "cudaGetDeviceCount"); !ok) return ok;
  if (count == 0)
    return fail(ErrorKind::kUnavailable, "this worker sees no GPU", "see nvidia-smi; unset CUDA_VISIBLE_DEVICES");
  if (auto ok = libraries_.check(libraries_.cudaGetDevice(&device_), "cudaGetDevice"); !ok) return ok;
  if (auto ok = use_device(); !ok) return ok;
  return libraries_.check(libraries_.cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                          "cudaStreamCreateWithFlags");
}

Result<void> Communicator::use_device() { return libraries_.check(libraries_.cudaSetDevice(device_), "cudaSetDevice"); }

Result<void> Communicator::meet_all(const LinkSpec& spec, const Group& group) {
  name_nics(spec.interface);
  for (std::uint32_t peer = 0; peer < members_; ++peer)
    if (peer != own_) others_ += (others_.empty() ? "" : ", ") + group.member + " " + std::to_string(peer);
  Introduction own;
  if (auto ok = libraries_.check(libraries_.ncclGetVersion(&own.version), "ncclGetVersion"); !ok) return ok;
  if (own_ == 0)
    if (auto ok = libraries_.check(libraries_.ncclGetUniqueId(&own.id), "ncclGetUniqueId"); !ok) return ok;
  const auto values = meet(group, "nccl", std::as_bytes(std::span(&own, 1)));
  if (!values) return tl::unexpected(values.error());
  ncclUniqueId id{};
  for (std::uint32_t peer = 0; peer < members_; ++peer) {
    const std::string who = group.member + " " + std::to_string(peer);
    const auto introduction = read_introduction((*values)[peer], who);
    if (!introduction) return tl::unexpected(introduction.error());
    if (peer == 0) id = introduction->id;
    if (introduction->version != own.version)
      return fail(ErrorKind::kMismatch,
                  who + " has NCCL " + version_text(introduction->version) + ", " + group.member + " " +
                      std::to_string(own_) + " has NCCL " + version_text(own.version),
                  "install the same version of NCCL on all nodes");
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (auto ok = libraries_.check(libraries_.ncclCommInitRankConfig(&communicator_, static_cast<int>(members_), id,
                                                                   static_cast<int>(own_), &config),
                                 "ncclCommInitRankConfig");
      !ok)
    return ok;
  return settle("connect", group.connect_deadline_us);
}

// Until the communicator is no longer busy with what was asked of it; 0: no deadline.
Result<void> Communicator::settle(const char* name, TimeUs deadline_us) {
  return poll([&]() -> std::optional<Result<void>> {
    ncclResult_t state = ncclSuccess;
    auto asked = libraries_.check(libraries_.ncclCommGetAsyncError(communicator_, &state), "ncclCommGetAsyncError",
                                  communicator_);
    if (asked) asked = libraries_.check(state, name, communicator_);
    if (!asked) return asked;
    if (state == ncclSuccess) return asked;
    if (aborted_) return fail(ErrorKind::kLost, std::string(name) + " was aborted");
    if (deadline_us != 0 && MonotonicClock::now() > deadline_us)
      return fail(ErrorKind::kTimeout, "NCCL did not connect this one with " + others_ + " in time",
                  "check that a firewall lets TCP through between the nodes; NCCL_DEBUG=INFO tells more");
    return std::nullopt;
  });
}

Result<void> Communicator::run(const char* name, const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call) {
  if (auto ok = libraries_.check(call(communicator_, stream_), name, communicator_); !ok) return ok;
  if (auto ok = settle(name, 0); !ok) return ok;
  return wait(name);
}

Result<void> Communicator::copy(void* to, const void* from, std::size_t bytes) {
  return libraries_.check(libraries_.cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
}

Result<void> Communicator::wait(const char* name) {
  return poll([&]() -> std::optional<Result<void>> {
    const cudaError_t state = libraries_.cudaStreamQuery(stream_);
    if (state != cudaSuccess && state != cudaErrorNotReady) return libraries_.check(state, name);
    ncclResult_t error = ncclSuccess;
    auto asked = libraries_.check(libraries_.ncclCommGetAsyncError(communicator_, &error), "ncclCommGetAsyncError",
                                  communicator_);
    if (asked) asked = libraries_.check(error, name, communicator_);
    if (!asked || state == cudaSuccess) return asked;  // a kernel that NCCL gave up on ends, too
    if (aborted_) return fail(ErrorKind::kLost, std::string(name) + " was aborted");
    return std::nullopt;
  });
}

void Communicator::halt() {
  if (communicator_ != nullptr) libraries_.ncclCommAbort(communicator_);
  communicator_ = nullptr;
  const TimeUs deadline_us = MonotonicClock::now() + kDrainUs;
  while (stream_ != nullptr && libraries_.cudaStreamQuery(stream_) == cudaErrorNotReady &&
         MonotonicClock::now() < deadline_us)
    std::this_thread::sleep_for(kLongestPause);
}

bool Communicator::is_device_memory(const void* data) const {
  // Room for a newer runtime's structure behind ours.
  struct {
    cudaPointerAttributes attributes;
    char room[256];
  } asked{};
  if (libraries_.cudaPointerGetAttributes(&asked.attributes, data) != cudaSuccess) {
    libraries_.cudaGetLastError();
    return false;
  }
  return asked.attributes.type == cudaMemoryTypeDevice || asked.attributes.type == cudaMemoryTypeManaged;
}

Communicator::~Communicator() {
  static_cast<void>(use_device());
  halt();
  if (stream_ != nullptr) libraries_.cudaStreamDestroy(stream_);
}

}  // namespace deft::link::nccl_backend
