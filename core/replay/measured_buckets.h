// The buckets of a traced job with their times: as they were, or cut in another way.
//
//   const auto buckets = buckets_of(steps, *group, rest_us);                        // as traced
//   const auto times = std::make_shared<const TensorTimes>(tensor_times(leader, *group, buckets, rest_us));
//   buckets_cut_by(*times, "uniform:65536", partition_bytes)                        // empty: it cannot be cut so
//
// Workers hand in tensors as a whole, so a bucket is ready with the last of its tensors. The pieces of a large tensor are ready together,
// and its forward waits for all of them: the last of these pieces in forward has the whole time.
//
// Each bucket has the median of its times, and medians of many short times add up to less than that of their sum, if some are long by
// chance. So the times of other buckets are made to add up to those of the traced ones: a job computes no faster for smaller buckets.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/model/profile.h"
#include "core/replay/worker_steps.h"
#include "core/trace/trace_file.h"

namespace deft::replay {

// In forward order, which is the reverse of the arena's. `rest_us`: of a step, behind its last gradient; it counts before the first
// bucket's forward. If too few steps are complete, each bucket has the times of those steps in which it was handed in.
std::vector<model::ProfileBucket> buckets_of(const std::vector<WorkerStep>& steps, const trace::TraceGroup& group,
                                             double rest_us);

// The rest of a step, behind the bucket that comes last.
double rest_of(const std::vector<WorkerStep>& steps);

// When each tensor was handed in.
struct TensorTimes {
  trace::TraceGroup group;        // as it was traced
  std::vector<WorkerStep> steps;  // some of them; ready_us is by tensor
  double rest_us = 0;
  double forward_us = 0, backward_us = 0;  // of all traced buckets, without the rest
};

// `buckets`: those that buckets_of() gave.
TensorTimes tensor_times(const trace::NodeTrace& leader, const trace::TraceGroup& group,
                         const std::vector<model::ProfileBucket>& buckets, double rest_us);

// The same gradients, if codecs leave tensors of fewer bytes as they are. Empty if the trace does not tell what codecs may encode.
std::optional<trace::TraceGroup> with_codec_floor(const trace::TraceGroup& group, std::uint64_t min_bytes);
// Counts in buckets of these gradients, however they are cut, what codecs may encode.
void count_coded_bytes(const trace::TraceGroup& group, std::vector<model::ProfileBucket>& buckets);

// `bucketing`: of core/partition/bucketing.h. Empty if it is none, or gives more buckets than a profile may have, or if there are too few
// steps.
std::vector<model::ProfileBucket> buckets_cut_by(const TensorTimes& times, std::string_view bucketing,
                                                 std::uint64_t partition_bytes);

}  // namespace deft::replay
