// A node's account of gradients: conservation and order, whatever arrives when, and every misuse refused.
#include "daemon/node/gradients.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <random>

#include "core/partition/bucketing.h"

namespace deft::daemon {
namespace {

using model::AllReduceHalf;
using model::BucketIndex;

Gradients make(const std::vector<model::TensorSpec>& specs, std::size_t workers, std::uint64_t bucket_bytes = 1 << 20,
               std::uint32_t slots = 1) {
  const auto layout = model::lay_out(specs, slots).value();
  const std::string bucketing = "uniform:" + std::to_string(bucket_bytes);
  auto buckets = partition::cut_buckets(specs, layout, {bucketing, "fifo", bucket_bytes}).value();
  Gradients gradients(specs, layout, workers);
  EXPECT_TRUE(gradients.set_buckets(std::move(buckets)));
  return gradients;
}

std::vector<model::TensorSpec> three() {
  return {{"a", model::DType::kFloat32, {7}, 2},
          {"b", model::DType::kFloat16, {33}, 1},
          {"c", model::DType::kFloat32, {1000}, 0}};
}

TEST(Gradients, BucketIsReadyWhenEveryWorkerHandedInEveryTensor) {
  auto g = make(three(), 2);
  EXPECT_TRUE(g.notify_ready(0, {0, 3}, 0, {0}, 0, 1)->empty());
  EXPECT_TRUE(g.notify_ready(1, {0, 1}, 0, {0}, 0, 2)->empty());
  const auto ready = g.notify_ready(1, {1, 2}, 0, {0}, 0, 3);
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->size(), g.buckets().size());
  for (BucketIndex b = 0; b < g.buckets().size(); ++b) EXPECT_TRUE(g.is_ready(b, 0));
}

TEST(Gradients, ABucketIsNeededWhenTheFirstOfItsTensorsIs) {
  const auto specs = three();
  const auto layout = model::lay_out(specs, 1).value();
  auto buckets = partition::cut_buckets(specs, layout, {"uniform:1024", "fifo", 1024}).value();
  for (auto& bucket : buckets) bucket.forward_position = 77;
  Gradients g(specs, layout, 1);
  ASSERT_TRUE(g.set_buckets(buckets));
  for (const auto& bucket : g.buckets()) {
    std::uint32_t first = 77;
    for (std::uint32_t t = 0; t < specs.size(); ++t) {
      const auto& place = layout.tensors[t];
      if (bucket.offset < place.offset + place.bytes && place.offset < bucket.offset + bucket.bytes)
        first = std::min(first, specs[t].forward_position);
    }
    if (first == 77) continue;  // padding
    EXPECT_EQ(bucket.forward_position, first) << "at byte " << bucket.offset;
  }
}

TEST(Gradients, RefusesATensorThatDoesNotExist) {
  auto g = make(three(), 1);
  for (const auto& [first, count] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{3, 1}, {0, 4}, {0, 0}, {1, 0xffffffffu}, {0xffffffffu, 2}})
    EXPECT_EQ(g.notify_ready(0, {first, count}, 0, {0}, 0, 1).error().kind, ErrorKind::kViolation);
}

TEST(Gradients, RefusesATensorThatComesTwiceTooEarlyOrInTheWrongSlot) {
  auto g = make(three(), 1);
  EXPECT_FALSE(g.notify_ready(0, {0, 1}, 1, {1}, 0, 1));
  EXPECT_FALSE(g.notify_ready(0, {0, 1}, 0, {0}, 1, 1));
  EXPECT_TRUE(g.notify_ready(0, {0, 1}, 0, {0}, 0, 1));
  EXPECT_FALSE(g.notify_ready(0, {0, 1}, 0, {0}, 0, 1));
  EXPECT_FALSE(g.notify_ready(0, {0, 1}, 1, {1}, 0, 1)) << "step 0 is not reduced yet";
}

TEST(Gradients, RefusesBucketsThatLeaveAGapOrOverlap) {
  const auto specs = three();
  const auto layout = model::lay_out(specs, 1).value();
  auto buckets = partition::cut_buckets(specs, layout, {"uniform:1024", "fifo", 1024}).value();
  ASSERT_GT(buckets.size(), 2u);
  auto gap = buckets;
  gap.erase(gap.begin() + 1);
  EXPECT_FALSE(Gradients(specs, layout, 1).set_buckets(gap));
  auto twice = buckets;
  twice.push_back(buckets[0]);
  EXPECT_FALSE(Gradients(specs, layout, 1).set_buckets(twice));
}

TEST(Gradients, RefusesLaunchesThatCoverBytesTwiceOrCutElements) {
  auto g = make(three(), 1);
  const auto bytes = g.buckets()[0].bytes;
  EXPECT_FALSE(g.start(0, 0, {0}, 0, bytes + 4, 1));
  EXPECT_FALSE(g.start(0, 0, {0}, 2, 4, 1));
  EXPECT_FALSE(g.start(99, 0, {0}, 0, 4, 1));
  EXPECT_TRUE(g.start(0, 0, {0}, 0, bytes, 1));
  EXPECT_FALSE(g.start(0, 0, {0}, 0, 4, 1));
}

TEST(Gradients, APartMayRunOnOverTheBucketsBehindItAndEndsAllTheirTensors) {
  auto g = make({{"a", model::DType::kFloat32, {256}, 2},
                 {"b", model::DType::kFloat32, {256}, 1},
                 {"c", model::DType::kFloat32, {512}, 0}},
                1, 1024);
  ASSERT_EQ(g.buckets().size(), 4u);
  ASSERT_TRUE(g.notify_ready(0, {0, 2}, 0, {0}, 0, 1));
  EXPECT_TRUE(g.is_ready({0, 512, 1536}, 0));
  EXPECT_FALSE(g.is_ready({0, 512, 1537}, 0)) << "a byte of the third bucket";
  ASSERT_TRUE(g.notify_ready(0, {2, 1}, 0, {0}, 0, 1));
  ASSERT_TRUE(g.start(0, 0, {0}, 0, 2560, 1));
  EXPECT_FALSE(g.start(1, 0, {0}, 0, 4, 1)) << "it was ordered with the first bucket";
  ASSERT_TRUE(g.start(2, 0, {0}, 512, 1536, 1));
  const auto first = g.notify_finish(0, 0, 0, 2560);
  ASSERT_TRUE(first);
  ASSERT_EQ(first->size(), 1u);
  EXPECT_EQ(first->front().tensors.first, 0u);
  EXPECT_EQ(first->front().tensors.count, 2u);
  EXPECT_FALSE(g.idle());
  const auto last = g.notify_finish(2, 0, 512, 1536);
  ASSERT_TRUE(last);
  ASSERT_EQ(last->size(), 1u);
  EXPECT_EQ(last->front().tensors.first, 2u);
  EXPECT_TRUE(g.idle());
  EXPECT_EQ(g.finished_generations(), 1u);
}

// A later generation may be through first, on another link; workers would take it for both.
TEST(Gradients, GenerationsOfATensorAreToldInOrder) {
  const auto layout = model::lay_out(three(), 3).value();
  Gradients g(three(), layout, 1);
  ASSERT_TRUE(g.set_buckets(partition::cut_buckets(three(), layout, {"uniform:4096", "fifo", 4096}).value()));
  for (const std::uint64_t generation : {0, 1, 2}) {
    ASSERT_TRUE(g.notify_ready(0, {0, 3}, generation, {generation}, static_cast<std::uint32_t>(generation), 1));
    for (BucketIndex b = 0; b < g.buckets().size(); ++b)
      ASSERT_TRUE(g.start(b, generation, {generation}, 0, g.buckets()[b].bytes, 1));
  }
  const auto finish = [&g](std::uint64_t generation) {
    std::vector<std::pair<std::uint64_t, std::uint32_t>> told;  // generation, tensor
    for (BucketIndex b = 0; b < g.buckets().size(); ++b) {
      const auto ended = g.notify_finish(b, generation, 0, g.buckets()[b].bytes);
      EXPECT_TRUE(ended);
      for (const auto& [tensors, of] : *ended)
        for (std::uint32_t t = tensors.first; t < tensors.first + tensors.count; ++t) told.emplace_back(of, t);
    }
    std::ranges::stable_sort(told, {}, &std::pair<std::uint64_t, std::uint32_t>::second);  // by tensor, as told
    return told;
  };
  using Told = std::vector<std::pair<std::uint64_t, std::uint32_t>>;
  EXPECT_EQ(finish(1), Told{});
  EXPECT_EQ(finish(0), (Told{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}}));
  EXPECT_EQ(finish(2), (Told{{2, 0}, {2, 1}, {2, 2}}));
  EXPECT_TRUE(g.idle());
}

TEST(Gradients, RefusesAPartThatRunsIntoAnotherTypeOrBeyondTheArena) {
  auto g = make(three(), 1);
  ASSERT_EQ(g.buckets().size(), 2u);  // float32 and float16
  for (const BucketIndex bucket : {0, 1}) {
    const auto refused = g.start(bucket, 0, {0}, 0, g.buckets()[bucket].bytes + 64, 1);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("does not lie in one piece"), std::string::npos);
  }
}

TEST(Gradients, AnAllGatherIsOfOneReduceScatterThatHasFinishedHere) {
  auto g = make(three(), 1, 1024);
  ASSERT_TRUE(g.notify_ready(0, {0, 3}, 0, {0}, 0, 1));
  const auto start = [&](std::uint64_t offset, std::uint64_t bytes, AllReduceHalf half) {
    return g.start(0, 0, {0}, offset, bytes, 1, half).has_value();
  };
  EXPECT_FALSE(start(0, 512, AllReduceHalf::kAllGather)) << "nothing was reduced";
  ASSERT_TRUE(start(0, 512, AllReduceHalf::kReduceScatter));
  EXPECT_FALSE(g.is_ready({0, 0, 512}, 0, AllReduceHalf::kAllGather)) << "it runs";
  EXPECT_FALSE(start(0, 512, AllReduceHalf::kReduceScatter)) << "reduced twice";
  ASSERT_TRUE(g.notify_finish(0, 0, 0, 512, AllReduceHalf::kReduceScatter));
  EXPECT_TRUE(g.is_ready({0, 0, 512}, 0, AllReduceHalf::kAllGather));
  EXPECT_FALSE(g.notify_finish(0, 0, 0, 512, AllReduceHalf::kReduceScatter)) << "it finished twice";
  EXPECT_FALSE(start(0, 256, AllReduceHalf::kAllGather)) << "the nodes' shares would be others";
  EXPECT_FALSE(start(256, 256, AllReduceHalf::kAllGather));
  ASSERT_TRUE(start(0, 512, AllReduceHalf::kAllGather));
  EXPECT_FALSE(start(0, 512, AllReduceHalf::kAllGather)) << "gathered twice";
  EXPECT_TRUE(g.notify_finish(0, 0, 0, 512, AllReduceHalf::kAllGather));
  EXPECT_FALSE(g.is_ready({0, 0, 512}, 0, AllReduceHalf::kAllGather));
}

TEST(Gradients, NoticesWorkersThatEndAGenerationWithDifferentSteps) {
  auto g = make(three(), 2);
  ASSERT_TRUE(g.notify_ready(0, {0, 3}, 0, {4}, 0, 1));
  const auto other = g.notify_ready(1, {0, 3}, 0, {3}, 0, 1);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().kind, ErrorKind::kMismatch);
  EXPECT_NE(other.error().message().find("ends with step 4 on one worker and with step 3 on another"),
            std::string::npos);
  EXPECT_EQ(g.start(0, 0, {5}, 0, 4, 1).error().kind, ErrorKind::kMismatch);
}

TEST(Gradients, NoticesAFlushOnOneWorkerWhereGenerationsEndAlike) {
  auto g = make(three(), 2);
  ASSERT_TRUE(g.notify_ready(0, {0, 3}, 0, {4, 4}, 0, 1));
  const auto other = g.notify_ready(1, {0, 3}, 0, {4, 1}, 0, 1);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().kind, ErrorKind::kMismatch);
  EXPECT_NE(other.error().message().find("a new plan before step 4 on one worker and before step 1 on another"),
            std::string::npos)
      << other.error().message();
}

TEST(Gradients, NamesTheWorkerAndTheTensorThatAreOwed) {
  auto g = make(three(), 2);
  ASSERT_TRUE(g.notify_ready(0, {0, 3}, 0, {0}, 0, 100));
  ASSERT_TRUE(g.notify_ready(1, {0, 1}, 0, {0}, 0, 150));
  EXPECT_TRUE(g.owed(99).empty());
  const auto owed = g.owed(200);
  ASSERT_FALSE(owed.empty());
  for (const auto& o : owed) {
    EXPECT_EQ(o.workers, std::vector<std::size_t>{1});
    EXPECT_NE(o.tensor, 0u);
    EXPECT_EQ(o.since_us, 100);
  }
}

std::vector<model::TensorSpec> random_specs() {
  const auto count = *rc::gen::inRange(1, 12);
  std::vector<model::TensorSpec> specs;
  for (int i = 0; i < count; ++i)
    specs.push_back({"t" + std::to_string(i),
                     *rc::gen::element(model::DType::kFloat32, model::DType::kFloat16, model::DType::kFloat64),
                     {*rc::gen::inRange<std::uint64_t>(1, 5000)},
                     static_cast<std::uint32_t>(count - i)});
  return specs;
}

// Every byte is reduced once and every tensor ends once, for random models, workers, buckets, parts and orders.
RC_GTEST_PROP(GradientsProperty, ConservesEveryTensorOfEveryGeneration, ()) {
  const auto specs = random_specs();
  const auto workers = *rc::gen::inRange<std::size_t>(1, 4);
  const auto slots = *rc::gen::inRange<std::uint32_t>(1, 3);
  auto g = make(specs, workers, *rc::gen::element<std::uint64_t>(1024, 2048, 4096, 1 << 16), slots);
  std::mt19937 random(*rc::gen::arbitrary<std::uint32_t>());
  for (std::uint64_t generation = 0; generation < 3; ++generation) {
    std::vector<std::pair<std::size_t, std::uint32_t>> arrivals;
    for (std::size_t w = 0; w < workers; ++w)
      for (std::uint32_t t = 0; t < specs.size(); ++t) arrivals.emplace_back(w, t);
    std::shuffle(arrivals.begin(), arrivals.end(), random);
    std::vector<BucketIndex> ready;
    for (const auto& [worker, tensor] : arrivals) {
      const auto now_ready = g.notify_ready(worker, {tensor, 1}, generation, {generation, 0},
                                            static_cast<std::uint32_t>(g.map().slot_of(generation)), 1);
      RC_ASSERT(now_ready.has_value());
      ready.insert(ready.end(), now_ready->begin(), now_ready->end());
    }
    RC_ASSERT(ready.size() == g.buckets().size());
    std::vector<std::tuple<BucketIndex, std::uint64_t, std::uint64_t>> parts;
    const bool across = *rc::gen::arbitrary<bool>();  // parts run on over buckets of the same type
    for (BucketIndex b = 0; b < g.buckets().size();) {
      const auto element = model::dtype_bytes(g.buckets()[b].dtype);
      BucketIndex end = b + 1;
      std::uint64_t size = g.buckets()[b].bytes;
      for (; across && end < g.buckets().size() && g.buckets()[end].dtype == g.buckets()[b].dtype; ++end)
        size += g.buckets()[end].bytes;
      std::uint64_t before = 0;  // bytes of the buckets before b
      for (std::uint64_t at = 0; at < size;) {
        for (; at - before >= g.buckets()[b].bytes; ++b) before += g.buckets()[b].bytes;
        const auto bytes = (1 + random() % ((size - at) / element)) * element;
        parts.emplace_back(b, at - before, bytes);
        at += bytes;
      }
      b = end;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    std::vector<int> ended(specs.size(), 0);
    std::vector<AllReduceHalf> last(parts.size(), AllReduceHalf::kBoth);  // what completes each part
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (random() % 2 == 0) continue;
      const auto& [bucket, offset, bytes] = parts[i];
      last[i] = AllReduceHalf::kAllGather;
      RC_ASSERT(g.start(bucket, generation, {generation}, offset, bytes, 1, AllReduceHalf::kReduceScatter).has_value());
      RC_ASSERT(g.notify_finish(bucket, generation, offset, bytes, AllReduceHalf::kReduceScatter)->empty());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& [bucket, offset, bytes] = parts[i];
      RC_ASSERT(g.start(bucket, generation, {generation}, offset, bytes, 1, last[i]).has_value());
      const auto ranges = g.notify_finish(bucket, generation, offset, bytes, last[i]);
      RC_ASSERT(ranges.has_value());
      for (const auto& [range, of] : *ranges) {
        RC_ASSERT(of == generation);
        for (std::uint32_t t = range.first; t < range.first + range.count; ++t) ++ended[t];
      }
    }
    for (const int times : ended) RC_ASSERT(times == 1);
    RC_ASSERT(g.idle());
  }
}

}  // namespace
}  // namespace deft::daemon
