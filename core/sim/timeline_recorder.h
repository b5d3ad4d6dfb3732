// Records the timeline of the leader if it is switched on, and else only when its steps began and how many pieces were sent. Buckets are
// numbered in forward order, as in the profile.
//
//   TimelineRecorder recorder(profile, options.record);
//   recorder.computed(span);  recorder.sent(launch, started_us, ended_us);  recorder.applied(bucket, update, complete_us);
//   outcome.timeline = recorder.take();
//   outcome.forward_began_us = recorder.forward_began_us();  outcome.pieces = recorder.pieces();
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/model/events.h"
#include "core/sched/scheduler.h"
#include "core/sim/launch_buckets.h"

namespace deft::sim {

class TimelineRecorder {
 public:
  TimelineRecorder(const model::Profile& profile, bool on)
      : profile_(profile), on_(on), backward_end_us_(profile.buckets.size(), 0) {}

  void computed(const model::ComputeSpan& span) {
    if (span.stage == model::Stage::kBackward) backward_end_us_[span.bucket] = span.end_us;
    if (span.stage == model::Stage::kForward && span.bucket == 0) forward_began_us_.push_back(span.start_us);
    if (on_) timeline_.compute.push_back(span);
  }
  // A launch over several buckets becomes one entry for each, one after the other.
  void sent(const sched::Launch& launch, double started_us, double ended_us) {
    pieces_ += pieces_of(launch);
    if (!on_) return;
    double whole_us = 0, done_us = 0;
    for_each_timed_bucket(profile_, launch, [&](const model::BucketPiece&, double us) { whole_us += us; });
    double begin_us = started_us;
    for_each_timed_bucket(profile_, launch, [&](const model::BucketPiece& piece, double us) {
      done_us += us;
      const double end_us = done_us >= whole_us ? ended_us : started_us + (ended_us - started_us) * done_us / whole_us;
      timeline_.sends.push_back(
          {launch.link, piece.bucket, launch.generation, piece.offset, piece.bytes, begin_us, end_us, launch.half});
      begin_us = end_us;
    });
  }
  void applied(std::uint32_t bucket, const sched::Update& update, double complete_us) {
    if (on_)
      timeline_.updates.push_back({bucket, update.generation, update.first_step, update.last_step,
                                   std::max(complete_us, backward_end_us_[bucket])});
  }
  model::Timeline take() { return std::move(timeline_); }
  // [step]: behind its waits.
  [[nodiscard]] const std::vector<double>& forward_began_us() const { return forward_began_us_; }
  [[nodiscard]] std::uint64_t pieces() const { return pieces_; }

 private:
  [[nodiscard]] std::uint64_t pieces_of(const sched::Launch& launch) const {
    std::uint64_t pieces = 0;
    for_each_bucket(profile_, launch, [&](const model::BucketPiece&) { return ++pieces > 0; });
    return pieces;
  }

  const model::Profile& profile_;
  bool on_;
  std::vector<double> backward_end_us_;  // [bucket]
  std::vector<double> forward_began_us_;
  std::uint64_t pieces_ = 0;
  model::Timeline timeline_;
};

}  // namespace deft::sim
