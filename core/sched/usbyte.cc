// US-Byte: unequal blocks. In backward a block of whole units fills the time until the next bucket; in forward each
// bucket's rest goes as one block. Once it has a profile it raises priorities if its model says that this is faster. If its
// model prefers equal parts in forward order, it sends those, as ByteScheduler does.
#include <utility>

#include "core/model/buckets.h"
#include "core/sched/block_scheduler.h"
#include "core/sched/policies.h"
#include "core/sched/profile_watch.h"
#include "core/sched/queue_scheduler.h"
#include "core/sched/usbyte_model.h"

namespace deft::sched {
namespace {

std::vector<std::uint32_t> forward_ranks(const Setup& setup) {
  std::vector<std::uint32_t> ranks;
  for (const auto& bucket : setup.buckets) ranks.push_back(bucket.forward_position);
  return ranks;
}

PartPlacer::Rules part_rules(const Setup& setup) {
  const CreditRules sizes = credit_rules(setup.partition_bytes, setup.credit_bytes);
  return {sizes.part, sizes.credit, true, false};
}

class UsByte final : public BlockScheduler {
 public:
  explicit UsByte(const Setup& setup)
      : BlockScheduler(setup, {forward_ranks(setup), setup.partition_bytes, true, true}),
        partition_bytes_(setup.partition_bytes),
        credit_bytes_(setup.credit_bytes),
        parts_(queue_, board_, part_rules(setup)),
        watch_(setup.links.size(), true) {}

  void bucket_ready(model::BucketIndex index, std::uint64_t step, TimeUs now_us) override {
    if (!equal_parts_) return BlockScheduler::bucket_ready(index, step, now_us);
    forecast_ready(index, step, now_us);
    enqueue(index, step, bucket(index).forward_position, parts_.part_limit());
  }
  std::vector<Launch> take_launches(TimeUs now_us) override {
    if (!equal_parts_) return BlockScheduler::take_launches(now_us);
    auto launches = parts_.take(now_us);
    for (Launch& launch : launches) send(launch, now_us);
    return launches;
  }
  void link_lost(model::LinkIndex link) override {
    BlockScheduler::link_lost(link);
    watch_.link_lost(link);
  }

  [[nodiscard]] bool wants_profile(std::uint64_t step) const override { return watch_.is_due(step); }
  void profile_measured(const model::Profile& profile, std::uint64_t step, TimeUs now_us) override {
    BlockScheduler::profile_measured(profile, step, now_us);
    if (!watch_.look(profile, step)) return;
    watch_.decided(profile);
    const UsByteModel model = usbyte_model(watch_.remaining(profile), partition_bytes_, credit_bytes_);
    const auto ranks = raised_ranks(model);
    change_ranks({ranks.rbegin(), ranks.rend()});
    equal_parts_ = model.parts_us() < model.blocks(ranks).step_us;
    if (equal_parts_) parts_.apply_window();
  }

 private:
  std::uint64_t partition_bytes_, credit_bytes_;
  PartPlacer parts_;
  bool equal_parts_ = false;
  ProfileWatch watch_;
};

}  // namespace

Result<std::unique_ptr<Scheduler>> make_usbyte(const Setup& setup) { return std::make_unique<UsByte>(setup); }

}  // namespace deft::sched
