// The simulator notices what a faulty scheduler does. Each fake here has one of the faults of published code.
#include <gmock/gmock.h>

#include "tests/sim/run.h"

namespace deft::sim {
namespace {

using sched::Launch;
using sched::Update;

// Sends whole buckets on link 0 as they become ready; the faults are made by what derives from it.
class Fake : public sched::Scheduler {
 public:
  explicit Fake(const model::Profile& profile) {
    for (auto it = profile.buckets.rbegin(); it != profile.buckets.rend(); ++it) bytes_.push_back(it->bytes);
  }
  void stage_began(sched::Stage, std::uint64_t, TimeUs, TimeUs) override {}
  void bucket_ready(model::BucketIndex bucket, std::uint64_t step, TimeUs) override { ready(bucket, step); }
  void part_finished(const Launch&, TimeUs) override {}
  void link_measured(model::LinkIndex, const model::LinkModel&) override {}
  void link_lost(model::LinkIndex) override {}
  std::vector<Launch> take_launches(TimeUs) override { return std::exchange(launches_, {}); }
  std::vector<Update> take_updates() override { return std::exchange(updates_, {}); }

 protected:
  virtual void ready(model::BucketIndex bucket, std::uint64_t step) {
    send(bucket, step, 0, bytes_[bucket]);
    updates_.push_back({bucket, step, step, step, step + 1});
  }
  void send(model::BucketIndex bucket, std::uint64_t generation, std::uint64_t offset, std::uint64_t bytes) {
    launches_.push_back({sent_++, 0, bucket, generation, offset, bytes});
  }
  std::vector<std::uint64_t> bytes_;
  std::vector<Launch> launches_;
  std::vector<Update> updates_;
  std::uint64_t sent_ = 0;
};

template <typename Scheduler>
std::string complaint() {
  const auto profile = small({{100, 1, 1}, {200, 1, 1}});
  Scheduler scheduler(profile);
  const auto outcome = simulate(scheduler, profile, {.steps = 10, .warmup_steps = 2});
  return outcome ? "none" : outcome.error().message();
}

TEST(Faults, TheFakeWithoutAFaultIsFine) { EXPECT_EQ(complaint<Fake>(), "none"); }

TEST(Faults, ALastSliceThatStopsShortStallsTheNextForward) {
  struct Short : Fake {
    using Fake::Fake;
    void ready(model::BucketIndex bucket, std::uint64_t step) override {
      send(bucket, step, 0, bytes_[bucket] - 1);
      updates_.push_back({bucket, step, step, step, step + 1});
    }
  };
  EXPECT_THAT(complaint<Short>(),
              testing::HasSubstr("step 1 stalls: its forward waits for generation 0 of bucket 1, of "
                                 "which 99 of 100 bytes have arrived"));
}

TEST(Faults, BytesSentTwiceAreNoticed) {
  struct Twice : Fake {
    using Fake::Fake;
    void ready(model::BucketIndex bucket, std::uint64_t step) override {
      Fake::ready(bucket, step);
      send(bucket, step, 0, 1);
    }
  };
  EXPECT_THAT(complaint<Twice>(), testing::HasSubstr("sent twice"));
}

TEST(Faults, AStepThatNoUpdateMergesIsNoticed) {
  struct Skip : Fake {
    using Fake::Fake;
    void ready(model::BucketIndex bucket, std::uint64_t step) override {
      if (step % 2 == 1) Fake::ready(bucket, step);
    }
  };
  EXPECT_THAT(complaint<Skip>(), testing::HasSubstr("the next step to merge is 0"));
}

TEST(Faults, AnUpdateThatIsMadeKnownAfterItsForwardIsNoticed) {
  struct Late : Fake {
    using Fake::Fake;
    void ready(model::BucketIndex bucket, std::uint64_t step) override {
      send(bucket, step, 0, bytes_[bucket]);
      if (step > 0) updates_.push_back({bucket, step - 1, step - 1, step - 1, step});
    }
  };
  EXPECT_THAT(complaint<Late>(), testing::HasSubstr("has begun already"));
}

TEST(Faults, AGenerationThatNeverGoesIsAStallAndNoHang) {
  struct Starved : Fake {
    using Fake::Fake;
    void ready(model::BucketIndex bucket, std::uint64_t step) override {
      if (bucket == 0) return updates_.push_back({bucket, step, step, step, step + 1});
      Fake::ready(bucket, step);
    }
  };
  EXPECT_THAT(complaint<Starved>(), testing::HasSubstr("0 of 200 bytes"));
}

}  // namespace
}  // namespace deft::sim
