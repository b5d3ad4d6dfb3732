// The parts of policies that send ready buckets in order.
#include "core/sched/queue_scheduler.h"

#include <gtest/gtest.h>

namespace deft::sched {
namespace {

// Of a bucket of nearly 8 MB on two equal links of 100 MB/s.
std::size_t parts_at(double latency_us) {
  Setup setup;
  setup.policy = "fifo";
  setup.partition_bytes = 4'000'000;
  setup.buckets = {{"b", 0, 7'995'392, model::DType::kFloat32, 0, 0, 1}};
  setup.links = {{"a", latency_us, 100}, {"b", latency_us, 100}};
  const auto scheduler = make_scheduler(setup).value();
  scheduler->bucket_ready(0, 0, 0);
  return scheduler->take_launches(0).size();
}

TEST(QueueScheduler, PartsOfABucketThatNothingOvertakesLastLongBesideALargeLatency) {
  EXPECT_EQ(parts_at(100), 8U) << "parts of 10 ms";
  EXPECT_EQ(parts_at(5'000), 2U) << "parts of 40 ms";
}

}  // namespace
}  // namespace deft::sched
