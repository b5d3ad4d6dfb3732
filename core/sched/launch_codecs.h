// The codec of a launch, and its bytes on the wire.
//
//   LaunchCodecs codecs(setup);
//   codecs.follow(step, plan.codecs);                     // for generations that begin from `step` on
//   launch.codec = codecs.of(bucket, first_step);
//   board.launch(codecs.on_wire(launch), now_us);         // links know wire bytes alone
//
// If a plan chooses no codecs, all launches have the job's, and links are measured by the bytes of gradients. Pure and not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/sched/scheduler.h"

namespace deft::sched {

class LaunchCodecs {
 public:
  explicit LaunchCodecs(const Setup& setup)
      : fixed_(setup.codec),
        codecs_(setup.codecs),
        fixed_cost_(setup.codec_cost),
        links_(setup.small_overtake ? setup.links.size() : 0) {
    for (const auto& bucket : setup.buckets) coded_shares_.push_back(model::coded_share(bucket));
  }

  // `codecs`: of each bucket; empty: all are exact.
  void follow(std::uint64_t step, std::vector<model::CodecIndex> codecs) {
    if (fixed_ != 0) return;
    plans_.push_back({step, std::move(codecs)});
    if (plans_.size() > kPlansKept) plans_.pop_front();
  }
  [[nodiscard]] model::CodecIndex of(model::BucketIndex bucket, std::uint64_t first_step) const {
    for (auto plan = plans_.rbegin(); plan != plans_.rend(); ++plan)
      if (plan->step <= first_step) return bucket < plan->codecs.size() ? plan->codecs[bucket] : model::CodecIndex{0};
    return fixed_;
  }
  [[nodiscard]] double wire_share(model::BucketIndex bucket, model::CodecIndex codec, model::LinkIndex link) const {
    return codec < codecs_.size() ? codecs_[codec].bytes_share(coded_shares_.at(bucket), link) : 1;
  }
  [[nodiscard]] std::uint64_t wire_bytes(model::BucketIndex bucket, model::CodecIndex codec, model::LinkIndex link,
                                         std::uint64_t bytes) const {
    return static_cast<std::uint64_t>(wire_share(bucket, codec, link) * static_cast<double>(bytes));
  }
  // True if every link carries `bytes` of a bucket beside larger transfers. The bytes that a link gets decide, also if they are encoded.
  // Links without a channel for that have nothing to gain, so there the bytes of gradients decide.
  [[nodiscard]] bool is_small(model::BucketIndex bucket, model::CodecIndex codec, std::uint64_t bytes) const {
    if (links_ == 0) return model::is_small(bytes);
    const model::CodecCost& cost = codec < codecs_.size() ? codecs_[codec] : fixed_cost_;
    for (model::LinkIndex link = 0; link < links_; ++link)
      if (!model::is_small(cost.wire_bytes(coded_shares_.at(bucket), bytes, link))) return false;
    return true;
  }
  // The same launch with its bytes on the wire.
  [[nodiscard]] Launch on_wire(const Launch& launch) const {
    Launch booked = launch;
    if (launch.codec < codecs_.size())
      booked.bytes = codecs_[launch.codec].wire_bytes(coded_shares_.at(launch.bucket), launch.bytes, launch.link);
    return booked;
  }

 private:
  // Plans change at most every few dozen steps, and generations live for a few steps.
  static constexpr std::size_t kPlansKept = 4;
  struct Plan {
    std::uint64_t step = 0;
    std::vector<model::CodecIndex> codecs;
  };

  const model::CodecIndex fixed_;
  const std::vector<model::CodecCost> codecs_;
  const model::CodecCost fixed_cost_;            // of the job's codec, which the board does not book
  const std::size_t links_;                      // that small transfers pass on; 0: not on all
  std::vector<model::CodedShare> coded_shares_;  // [bucket]
  std::deque<Plan> plans_;                       // the oldest first
};

}  // namespace deft::sched
