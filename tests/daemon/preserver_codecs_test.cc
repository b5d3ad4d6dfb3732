// The Preserver and codecs: which it takes back when the loss rises, and when it tries them again.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>

#include "core/compress/registry.h"
#include "tests/daemon/preserved_job.h"

namespace deft::daemon::preserved {
namespace {

// Two workers learn a bowl, loss = |x|^2 / 2 of 1,024 parameters. Their gradients are x and their own noise. The average goes
// through `codec` as between two nodes, or stays exact.
class Bowl {
 public:
  explicit Bowl(const char* codec) : codec_(compress::make_codec(codec).value()) {}

  double loss() const {
    return std::inner_product(x_.begin(), x_.end(), x_.begin(), 0.0) / 2 / static_cast<double>(x_.size());
  }
  void step(bool encoded, float learning_rate) {
    ++generation_;
    std::array<std::vector<float>, 2> gradients{x_, x_};
    for (auto& gradient : gradients)
      for (float& value : gradient) value += noise_(random_);
    const auto average = encoded ? sum_of_codes(gradients) : sum(gradients);
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] -= learning_rate / 2 * average[i];
  }

 private:
  using Vectors = std::array<std::vector<float>, 2>;
  static std::vector<float> sum(const Vectors& of) {
    std::vector<float> out = of[0];
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += of[1][i];
    return out;
  }
  std::vector<float> sum_of_codes(const Vectors& of) const {
    const compress::Slice slice{7, generation_, 0};
    std::array<std::vector<std::byte>, 2> codes;
    for (std::size_t i = 0; i < 2; ++i) {
      codes[i].resize(codec_->encoded_bytes(x_.size()));
      EXPECT_TRUE(codec_->encode(slice, of[i], codes[i]));
    }
    std::vector<std::byte> both(codes[0].size());
    std::size_t garbage = 0;
    const std::array<std::span<const std::byte>, 2> inputs{codes[0], codes[1]};
    EXPECT_TRUE(codec_->combine(slice, inputs, both, {}, garbage));
    std::vector<float> out(x_.size());
    EXPECT_TRUE(codec_->decode(slice, both, out));
    return out;
  }

  std::unique_ptr<const compress::Codec> codec_;
  std::uint64_t generation_ = 0;
  std::mt19937_64 random_{3};
  std::normal_distribution<float> noise_{0, 0.05F};
  std::vector<float> x_ = std::vector<float>(1024, 1.0F);
};

// Encodes its only bucket with the last codec that is allowed, at most codec 2.
Result<model::Plan> make_coded(const plan::PlanLimits& limits) {
  auto plan = plan_of({{0, 0, 1}});
  plan.codecs = {static_cast<model::CodecIndex>(std::min<std::size_t>(limits.codecs.last, 2))};
  return plan;
}

// Calls of `train` until there is a reason to change the plan, at most `most`.
template <typename Train>
int steps_until_reason(Job& job, const model::Plan& in_force, int most, const Train& train) {
  for (int steps = 0; steps < most; ++steps) {
    if (!job.preserver.reconsider(in_force).reason.empty()) return steps;
    train();
  }
  return most;
}

std::string text_of(const Job& job) { return job.preserver.status().value("codecs", ""); }

// With a learning rate of 0.9 exact gradients come close to the target at once; the noise of terngrad makes x grow.
TEST(PlanPreserver, ACodecUnderWhichTrainingDivergesIsTakenBackWithin50StepsAndReturnsOnce) {
  for (const int exact_steps : {12, 200}) {
    Bowl bowl("terngrad");
    Job job(false);
    const auto train = [&](bool encoded) {
      bowl.step(encoded, 0.9F);
      job.loss = bowl.loss();
      job.tell_one(2 * job.loss, 0.0025);
    };
    for (int i = 0; i < exact_steps; ++i) train(false);
    for (const bool again : {false, true}) {
      const auto coded = job.preserver.choose(make_coded, {}).value().plan;
      ASSERT_EQ(coded.codec_of(0), 2) << again;
      EXPECT_LE(steps_until_reason(job, coded, 100, [&] { train(true); }), 50);
      const auto reason = job.preserver.reconsider(coded);
      EXPECT_TRUE(reason.immediate);
      EXPECT_NE(reason.reason.find("under encoded gradients"), std::string::npos) << reason.reason;
      const auto back = job.preserver.choose(make_coded, {}).value();
      EXPECT_EQ(back.plan.codec_of(0), 0);
      EXPECT_NE(back.decision.note.find("the loss had risen"), std::string::npos);
      EXPECT_NE(text_of(job).find("codec 2 was taken back"), std::string::npos) << text_of(job);
      EXPECT_LE(steps_until_reason(job, back.plan, 300, [&] { train(false); }), again ? 129 : 65);
      EXPECT_LT(job.loss, 0.01);
      EXPECT_NE(job.preserver.reconsider(back.plan).reason.find("exact gradients helped"), std::string::npos);
      const auto careful = job.preserver.choose(make_coded, {}).value().plan;
      EXPECT_EQ(careful.codec_of(0), 1) << "the next codec with more bits";
      if (again) continue;
      EXPECT_EQ(steps_until_reason(job, careful, 500, [&] { train(false); }), 128);
    }
    EXPECT_EQ(job.preserver.choose(make_coded, {}).value().plan.codec_of(0), 1) << "whoever asks";
    EXPECT_NE(text_of(job).find("stays away for the rest of the job"), std::string::npos) << text_of(job);
  }
}

// A training of which only the loss is made: what it is, and its scatter.
struct ScriptedJob : Job {
  using Job::Job;
  void train(double mean) {
    loss = mean + noise(random);
    tell_one(0.5, 0, every);
  }
  // The plan in force once the loss is 2 and can be judged.
  model::Plan settle() {
    for (int i = 0; i < 8; ++i) train(2);
    return preserver.choose(make_coded, {}).value().plan;
  }
  std::uint64_t every = 1;  // steps
  std::mt19937_64 random{5};
  std::normal_distribution<> noise{0, 0.02};
};

// The loss rises as if the learning rate were too high, or other data had come. One step of eight is told, as later in a training.
TEST(PlanPreserver, ACodecComesBackIfExactGradientsDoNotHelpAndTheNextRiseIsJudgedForTwiceAsLong) {
  ScriptedJob job;
  job.every = 8;
  const auto coded = job.settle();
  EXPECT_EQ(steps_until_reason(job, coded, 40, [&] { job.train(2); }), 40);
  EXPECT_LE(steps_until_reason(job, coded, 40, [&] { job.train(3); }), 4);
  const auto exact = job.preserver.choose(make_coded, {}).value().plan;
  ASSERT_EQ(exact.codec_of(0), 0);
  EXPECT_EQ(steps_until_reason(job, exact, 1000, [&] { job.train(3); }), 9) << "64 steps";
  const auto reason = job.preserver.reconsider(exact);
  EXPECT_TRUE(reason.immediate);
  EXPECT_NE(reason.reason.find("exact gradients did not help: the loss rose from"), std::string::npos) << reason.reason;
  EXPECT_EQ(job.preserver.choose(make_coded, {}).value().plan.codec_of(0), 2);
  EXPECT_NE(text_of(job).find("codec 2 comes back"), std::string::npos) << text_of(job);
  EXPECT_EQ(steps_until_reason(job, coded, 200, [&] { job.train(3); }), 200) << "that is the level now";
  EXPECT_LE(steps_until_reason(job, coded, 40, [&] { job.train(4); }), 6);
  ASSERT_EQ(job.preserver.choose(make_coded, {}).value().plan.codec_of(0), 0);
  EXPECT_EQ(steps_until_reason(job, exact, 1000, [&] { job.train(3); }), 17) << "128 steps";
  EXPECT_EQ(job.preserver.choose(make_coded, {}).value().plan.codec_of(0), 1) << "this time exact gradients helped";
}

// A loss that has not begun to fall, or whose learning rate rises, may recover by itself.
TEST(PlanPreserver, WhereALossMayRiseByItselfTheCodecComesBackLater) {
  for (const bool begun : {false, true}) {
    ScriptedJob job(begun);
    const auto coded = job.settle();
    EXPECT_EQ(steps_until_reason(job, coded, 40, [&] { job.train(2); }), 40);
    if (begun) job.learning_rate *= 1.2;
    EXPECT_LE(steps_until_reason(job, coded, 40, [&] { job.train(3); }), 4) << "also before the first fall of the loss";
    EXPECT_EQ(job.preserver.statistics().is_null(), !begun);
    const auto exact = job.preserver.choose(make_coded, {}).value().plan;
    ASSERT_EQ(exact.codec_of(0), 0);
    EXPECT_EQ(steps_until_reason(job, exact, 1000, [&] { job.train(2); }), 65);
    const auto careful = job.preserver.choose(make_coded, {}).value().plan;
    EXPECT_EQ(careful.codec_of(0), 1);
    EXPECT_NE(text_of(job).find("may come back"), std::string::npos) << text_of(job);
    for (int i = 0; i < 127; ++i) job.train(1.5);
    EXPECT_EQ(job.preserver.choose(make_coded, {}).value().plan.codec_of(0), 1) << "whoever asks";
    job.train(1.5);
    const auto reason = job.preserver.reconsider(careful).reason;
    EXPECT_TRUE(!begun || reason.find("can be tried again") != std::string::npos) << reason;
    EXPECT_EQ(job.preserver.choose(make_coded, {}).value().plan.codec_of(0), 2);
  }
}

// One sample is enough, and nothing is known of the codec before the training is mended.
TEST(PlanPreserver, ALossThatIsNoNumberTakesTheCodecBackAtOnce) {
  ScriptedJob job;
  const auto coded = job.settle();
  ASSERT_EQ(coded.codec_of(0), 2);
  const auto fail = [&] { job.train(std::numeric_limits<double>::quiet_NaN()); };
  EXPECT_EQ(steps_until_reason(job, coded, 40, fail), 1);
  const auto reason = job.preserver.reconsider(coded);
  EXPECT_TRUE(reason.immediate);
  EXPECT_NE(reason.reason.find("infinite or no number under encoded gradients"), std::string::npos) << reason.reason;
  const auto exact = job.preserver.choose(make_coded, {}).value().plan;
  EXPECT_EQ(exact.codec_of(0), 0);
  EXPECT_EQ(job.preserver.status()["statistics_refused"], 0);
  EXPECT_EQ(steps_until_reason(job, exact, 300, fail), 300);
  EXPECT_EQ(steps_until_reason(job, exact, 300, [&] { job.train(2); }), 65);
  EXPECT_EQ(job.preserver.choose(make_coded, {}).value().plan.codec_of(0), 1);
  // One batch may have done it, so nothing is proved.
  EXPECT_NE(text_of(job).find("the loss is back"), std::string::npos) << text_of(job);
  EXPECT_NE(text_of(job).find("may come back"), std::string::npos) << text_of(job);
}

TEST(PlanPreserver, ACodecUnderWhichTheLossFallsStays) {
  Bowl bowl("int8");
  Job job(false);
  auto coded = plan_of({{0, 0, 1}});
  coded.codecs = {1};
  for (int i = 0; i < 400; ++i) {
    bowl.step(true, 0.05F);
    job.loss = bowl.loss();
    job.tell_one(2 * job.loss, 0.0025);
    EXPECT_EQ(job.preserver.reconsider(coded).reason, "") << i;
  }
}

}  // namespace
}  // namespace deft::daemon::preserved
