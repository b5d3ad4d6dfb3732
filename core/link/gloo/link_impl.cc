#include "core/link/gloo/link_impl.h"

#include <optional>
#include <string>
#include <utility>

#include "core/model/buckets.h"

namespace deft::link::gloo_backend {
namespace {

constexpr std::size_t kMain = 0;
constexpr std::size_t kPriority = 1;

// gloo's text without the source line in front of it.
std::string plain(const std::string& text) {
  const auto end = text.find("] ");
  return text.starts_with('[') && text.find(".cc:") < end && end != std::string::npos ? text.substr(end + 2) : text;
}

}  // namespace

LinkImpl::LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Mesh> main,
                   std::unique_ptr<Mesh> priority)
    : Link(spec.name(), group, Engine::kDepth, Engine::kDepth) {
  if (!main) return;
  channels_[kMain].mesh = std::move(main);
  channels_[kPriority].mesh = std::move(priority);
  for (Channel& channel : channels_) channel.engine = std::make_unique<Engine>(*channel.mesh, news_);
}

LinkImpl::~LinkImpl() {
  if (channels_[kMain].mesh == nullptr || failed()) return;
  if (!idle()) {
    settle();  // nothing must touch the data of requests that did not complete
    return;
  }
  for (Channel& channel : channels_) channel.mesh->part();
}

std::string LinkImpl::cause_of(const PeerFailure& failure) const {
  for (const Channel& channel : channels_)
    if (std::string cause = channel.mesh->failure_of(failure.peer); !cause.empty()) return cause;
  return plain(failure.what());
}

template <typename Work>
auto LinkImpl::naming_failures(Work work) -> Result<decltype(work())> {
  const SigpipeBlocked guard;
  try {
    return work();
  } catch (const PeerFailure& e) {
    const std::string peer = "node " + std::to_string(e.peer);
    return fail(ErrorKind::kLost, "the connection to " + peer + " failed: " + cause_of(e), "see the log of " + peer);
  }
}

std::vector<PeerTraffic> LinkImpl::traffic() const {
  std::vector<PeerTraffic> sums(nodes());
  for (const Channel& channel : channels_)
    if (channel.mesh != nullptr) channel.mesh->add_traffic(sums);
  for (std::uint32_t peer = 0; peer < sums.size(); ++peer) sums[peer].peer = peer;
  std::erase_if(sums, [](const PeerTraffic& peer) { return peer.sent_bytes == 0; });
  return sums;
}

std::vector<ThreadClock> LinkImpl::thread_clocks() const {
  std::vector<ThreadClock> clocks;
  std::uint16_t number = 0;
  for (const Channel& channel : channels_) {
    if (channel.mesh != nullptr) {
      channel.engine->add_thread_clocks(clocks, number);
      channel.mesh->add_thread_clocks(clocks, number);
    }
    ++number;
  }
  return clocks;
}

bool LinkImpl::overtakes(const WorkRequest& request) const {
  return request.reduces() && model::is_small(request.bytes());
}

Result<void> LinkImpl::start(const WorkRequest& request) {
  Engine& engine = *channels_[overtakes(request) ? kPriority : kMain].engine;
  const auto started = naming_failures([&] {
    engine.start(request);
    return true;
  });
  if (!started) return tl::unexpected(started.error());
  return {};
}

Result<std::optional<std::uint64_t>> LinkImpl::await() {
  return naming_failures([&]() -> std::optional<std::uint64_t> {
    while (true) {
      const std::uint64_t known = news_.count();
      for (const std::size_t channel : {kPriority, kMain})
        if (const auto ended = channels_[channel].engine->take_ended()) return ended;
      if (interrupted_.exchange(false)) return std::nullopt;
      news_.await_beyond(known);
    }
  });
}

void LinkImpl::interrupt_await() {
  interrupted_ = true;
  news_.raise();
}

void LinkImpl::settle() {
  for (Channel& channel : channels_) {
    channel.mesh->poison();  // the peers learn at once
    channel.engine->halt();
  }
}

void LinkImpl::stop(const Error& /*reason*/) {
  for (Channel& channel : channels_) channel.mesh->poison();
}

}  // namespace deft::link::gloo_backend
