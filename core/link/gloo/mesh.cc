#include "core/link/gloo/mesh.h"

#include <arpa/inet.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/link/gloo/mesh_sockets.h"
#include "core/link/gloo/signals.h"
#include "core/link/rendezvous.h"

namespace deft::link::gloo_backend {
namespace {

// Longer than any job; gloo adds it to a clock, so it must not be the largest number there is.
constexpr std::chrono::hours kForever{100};
constexpr std::chrono::milliseconds kPartingTime{500};

using Bytes = std::vector<std::byte>;

// What a node publishes: for each peer, the length and the bytes of the address of its pair.
Bytes encode(const std::vector<std::vector<char>>& addresses) {
  Bytes value;
  for (const auto& address : addresses) {
    const auto length = static_cast<std::uint32_t>(address.size());
    const auto* head = reinterpret_cast<const std::byte*>(&length);
    const auto* body = reinterpret_cast<const std::byte*>(address.data());
    value.insert(value.end(), head, head + sizeof length);
    value.insert(value.end(), body, body + length);
  }
  return value;
}

// The `index`-th address in a peer's value; empty when the value is malformed.
std::vector<char> decode(const Bytes& value, std::uint32_t index) {
  std::size_t offset = 0;
  for (std::uint32_t i = 0;; ++i) {
    std::uint32_t length = 0;
    if (value.size() - offset < sizeof length) return {};
    std::memcpy(&length, value.data() + offset, sizeof length);
    offset += sizeof length;
    if (value.size() - offset < length) return {};
    if (i == index) {
      const auto* body = reinterpret_cast<const char*>(value.data() + offset);
      return {body, body + length};
    }
    offset += length;
  }
}

// Filled in here: gloo would ask the resolver.
std::optional<gloo::transport::tcp::attr> device_attributes(const std::string& address) {
  gloo::transport::tcp::attr attr;
  attr.hostname = address;
  attr.ai_socktype = SOCK_STREAM;
  attr.ai_protocol = IPPROTO_TCP;
  std::memset(&attr.ai_addr, 0, sizeof attr.ai_addr);
  auto* v4 = reinterpret_cast<sockaddr_in*>(&attr.ai_addr);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&attr.ai_addr);
  if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    attr.ai_family = v4->sin_family = AF_INET;
    attr.ai_addrlen = sizeof(sockaddr_in);
  } else if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    attr.ai_family = v6->sin6_family = AF_INET6;
    attr.ai_addrlen = sizeof(sockaddr_in6);
  } else {
    return std::nullopt;
  }
  return attr;
}

// Whether this machine has the address. gloo leaks memory when it finds out that it has not.
Result<void> check_local(const gloo::transport::tcp::attr& attr) {
  const int fd = socket(attr.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&attr.ai_addr),
                                     static_cast<socklen_t>(attr.ai_addrlen)) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (bound) return {};
  return fail(ErrorKind::kUnavailable, "cannot listen on " + attr.hostname + ": " + std::strerror(error));
}

// Calls `expire` at the deadline unless it is destroyed before.
class Deadline {
 public:
  template <typename Expire>
  Deadline(TimeUs deadline_us, Expire expire)
      : thread_([this, deadline_us, expire] {
          std::unique_lock lock(mutex_);
          while (!done_) {
            const TimeUs left = deadline_us - MonotonicClock::now();
            if (left <= 0) break;
            changed_.wait_for(lock, std::chrono::microseconds(left));
          }
          if (done_) return;
          passed_ = true;
          lock.unlock();
          expire();
        }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  [[nodiscard]] bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  bool passed_ = false;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<Mesh>> Mesh::connect(const LinkSpec& spec, const LinkGroup& group) {
  std::unique_ptr<Mesh> mesh(new Mesh(group.node, group.nodes));
  if (group.nodes == 1) return mesh;
  if (auto created = mesh->create(spec.address); !created) return tl::unexpected(created.error());
  if (auto connected = mesh->connect_pairs(spec, group); !connected) return tl::unexpected(connected.error());
  return mesh;
}

Mesh::~Mesh() {
  // Sockets are closed softly: what was sent last may still be on its way to a slower peer.
  const SigpipeBlocked guard;
  context_.reset();
  device_.reset();
}

Result<void> Mesh::create(const std::string& address) {
  const auto attributes = device_attributes(address);
  if (!attributes) return fail(ErrorKind::kInvalid, "'" + address + "' is no IP address");
  if (auto local = check_local(*attributes); !local) return local;
  try {
    const AllSignalsBlocked inherited_by_the_loop;
    device_ = std::make_shared<gloo::transport::tcp::Device>(*attributes);
    context_ = device_->createContext(static_cast<int>(node_), static_cast<int>(nodes_));
    context_->setTimeout(kForever);
    for (std::uint32_t peer = 0; peer < nodes_; ++peer) {
      if (peer != node_) context_->createPair(static_cast<int>(peer));
    }
  } catch (const std::exception& e) {
    return fail(ErrorKind::kUnavailable, "gloo cannot listen on " + address + ": " + e.what());
  }
  return {};
}

Result<void> Mesh::connect_pairs(const LinkSpec& spec, const LinkGroup& group) {
  std::vector<std::vector<char>> addresses(nodes_);
  for (std::uint32_t peer = 0; peer < nodes_; ++peer) {
    if (peer == node_) continue;
    addresses[peer] = pair(peer).address().bytes();
    listeners_.push_back(gloo::transport::tcp::Address(addresses[peer]).getSockaddr());
  }
  auto values = meet(group, "gloo", encode(addresses));
  if (!values) return tl::unexpected(values.error());
  Deadline deadline(group.connect_deadline_us, [this] { poison(); });
  for (std::uint32_t peer = 0; peer < nodes_; ++peer) {
    if (peer == node_) continue;
    const std::string name = "node " + std::to_string(peer);
    const std::vector<char> address = decode((*values)[peer], node_);
    if (address.size() < sizeof(std::uint32_t)) return fail(ErrorKind::kViolation, name + " published a bad address");
    std::string cause;
    try {
      listeners_.push_back(gloo::transport::tcp::Address(address).getSockaddr());
      pair(peer).connect(address);
    } catch (const std::exception& e) {
      cause = e.what();
    }
    if (deadline.passed()) {
      return fail(ErrorKind::kTimeout, name + " came, but did not connect over " + spec.interface + " in time",
                  "check that a firewall lets TCP through between the nodes' " + spec.interface);
    }
    if (!cause.empty()) return fail(ErrorKind::kLost, "no connection to " + name + ": " + cause);
  }
  return {};
}

void Mesh::go_first() { put_first(listeners_); }

gloo::transport::Pair& Mesh::pair(std::uint32_t peer) { return *context_->getPair(static_cast<int>(peer)); }

std::unique_ptr<gloo::transport::UnboundBuffer> Mesh::unbound(std::byte* data, std::size_t bytes) {
  return context_->createUnboundBuffer(data, bytes);
}

// gloo fails a receive when the connection ends, even if its data has just arrived.
void Mesh::part() {
  constexpr std::uint64_t kTag = ~std::uint64_t{0};
  const SigpipeBlocked guard;
  const auto until = std::chrono::steady_clock::now() + kPartingTime;
  std::vector<std::byte> words(2 * nodes_);  // one to send and one to receive for each peer
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> buffers(nodes_);
  const auto each_peer = [&](auto visit) {
    for (std::uint32_t peer = 0; peer < nodes_; ++peer) {
      if (peer == node_) continue;
      try {
        visit(static_cast<int>(peer), buffers[peer]);
      } catch (const std::exception&) {
        buffers[peer].reset();  // this peer is gone already
      }
    }
  };
  each_peer([&](int peer, auto& buffer) {
    buffer = unbound(&words[2 * static_cast<std::size_t>(peer)], 2);
    buffer->recv(peer, kTag, 0, 1);
    buffer->send(peer, kTag, 1, 1);
  });
  each_peer([&](int, auto& buffer) {
    if (buffer == nullptr) return;
    const auto left = until - std::chrono::steady_clock::now();
    buffer->waitRecv(std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(1)));
    buffer->waitSend(std::chrono::milliseconds(1));
  });
}

void Mesh::poison() {
  if (context_ == nullptr) return;
  // gloo has no call for this, but a receive that times out fails all pairs of its context, with every operation that
  // is pending on them, and closes their sockets.
  const SigpipeBlocked guard;
  std::byte nothing{};
  try {
    unbound(&nothing, 1)->waitRecv(std::chrono::milliseconds(0));
  } catch (const std::exception&) {
    // as intended
  }
}

}  // namespace deft::link::gloo_backend
