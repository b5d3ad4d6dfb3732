// The ps link: every request is a round of pushes to the parameter servers, each answered by its result. The servers own the
// segments, so they run a whole all-reduce natively.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/link/link.h"
#include "core/link/ps/engine.h"
#include "core/link/traffic.h"

namespace deft::link::ps_backend {

class LinkImpl final : public Link, public TrafficCounters {
 public:
  LinkImpl(const LinkSpec& spec, const LinkGroup& group, std::unique_ptr<Engine> engine);

  [[nodiscard]] bool composes() const override { return false; }
  [[nodiscard]] std::vector<PeerTraffic> traffic() const override { return engine_->traffic(); }

 protected:
  Result<void> start(const WorkRequest& request) override;
  Result<std::optional<std::uint64_t>> await() override { return engine_->await(); }
  void settle() override { engine_->end(); }
  void stop(const Error& /*reason*/) override { engine_->abort(); }
  void interrupt_await() override { engine_->interrupt(); }

 private:
  [[nodiscard]] SegmentRule rule_for(const WorkRequest& request) const;
  void cut_encoded(const WorkRequest& request, std::vector<PsSegment>& segments);

  static constexpr std::size_t kDepth = 4;  // kWindow bounds the segments on the wire; these requests wait for it
  std::unique_ptr<Engine> engine_;
};

}  // namespace deft::link::ps_backend
