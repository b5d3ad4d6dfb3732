// The gloo link: two channels over one NIC. Each is a mesh of connections with its own engine.
//
// Small all-reduces (model::is_small) take the priority channel; the size alone decides, so all nodes agree. They wait neither
// behind large ones in their senders' queues, nor, as TCP queues little at the NIC, behind much of them there. Everything
// else takes the main channel.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/base/signals.h"
#include "core/link/gloo/engine.h"
#include "core/link/gloo/mesh.h"
#include "core/link/link.h"
#include "core/link/thread_clocks.h"
#include "core/link/traffic.h"

namespace deft::link::gloo_backend {

class LinkImpl final : public Link, public TrafficCounters, public ThreadClocks {
 public:
  // No meshes if the node is alone.
  LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Mesh> main, std::unique_ptr<Mesh> priority);
  ~LinkImpl() override;

  [[nodiscard]] std::vector<PeerTraffic> traffic() const override;
  [[nodiscard]] std::vector<ThreadClock> thread_clocks() const override;

 protected:
  Result<void> start(const WorkRequest& request) override;
  Result<std::optional<std::uint64_t>> await() override;
  void settle() override;
  void stop(const Error& reason) override;
  void interrupt_await() override;
  [[nodiscard]] bool overtakes(const WorkRequest& request) const override;

 private:
  struct Channel {
    std::unique_ptr<Mesh> mesh;
    std::unique_ptr<Engine> engine;
  };
  [[nodiscard]] std::string cause_of(const PeerFailure& failure) const;
  template <typename Work>
  auto naming_failures(Work work) -> Result<decltype(work())>;

  News news_;
  std::atomic<bool> interrupted_{false};
  std::array<Channel, 2> channels_;  // main and priority
};

}  // namespace deft::link::gloo_backend
