// The Preserver and codecs: which it takes back when the loss rises, and when it tries them again.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <numeric>
#include <random>

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

// With a learning rate of 0.9 exact gradients come close to the target at once; the noise of terngrad makes x grow.
TEST(PlanPreserver, ACodecUnderWhichTrainingDivergesIsTakenBackWithin50Steps) {
  for (const int exact_steps : {12, 200}) {  // before and after the warm-up
    Bowl bowl("terngrad");
    Job job(false);
    const auto make = [](const plan::Limits& limits) -> Result<model::Plan> {
      auto plan = plan_of({{0, 0, 1}});
      plan.codecs = {static_cast<model::CodecIndex>(std::min<std::size_t>(limits.codecs.last, 2))};
      return plan;
    };
    const auto train = [&](bool encoded) {
      bowl.step(encoded, 0.9F);
      job.loss = bowl.loss();
      job.tell_one(2 * job.loss, 0.0025);
    };
    for (int i = 0; i < exact_steps; ++i) train(false);
    const auto coded = job.preserver.choose(make, {}).value().plan;
    ASSERT_EQ(coded.codec_of(0), 2);
    int steps = 0;
    while (steps < 100 && job.preserver.reconsider(coded).reason.empty()) train(true), ++steps;
    EXPECT_LE(steps, 50);
    const auto reason = job.preserver.reconsider(coded);
    EXPECT_TRUE(reason.immediate);
    EXPECT_NE(reason.reason.find("under encoded gradients"), std::string::npos) << reason.reason;
    const auto back = job.preserver.choose(make, {}).value();
    EXPECT_EQ(back.plan.codec_of(0), 0);
    EXPECT_NE(back.decision.note.find("the loss had risen"), std::string::npos);
    for (int i = 0; i < 300; ++i) train(false);
    EXPECT_LT(job.loss, 0.01);
    EXPECT_NE(job.preserver.reconsider(back.plan).reason.find("tried again"), std::string::npos);
    const auto careful = job.preserver.choose(make, {}).value().plan;
    EXPECT_EQ(careful.codec_of(0), 1) << "the next codec with more bits";
    int waited = 0;
    while (waited < 500 && job.preserver.reconsider(careful).reason.empty()) train(false), ++waited;
    EXPECT_EQ(waited, 128) << "twice the wait";
    EXPECT_EQ(job.preserver.choose(make, {}).value().plan.codec_of(0), 2) << "the rise may have had another reason";
    EXPECT_EQ(job.preserver.reconsider(coded).reason, "");
    while (steps < 200 && job.preserver.reconsider(coded).reason.empty()) train(true), ++steps;
    EXPECT_NE(job.preserver.reconsider(coded).reason.find("the loss rose"), std::string::npos);
    EXPECT_EQ(job.preserver.choose(make, {}).value().plan.codec_of(0), 0);
    const std::uint64_t risen_at = job.step;
    while (job.step < 5000 && job.preserver.reconsider(back.plan).reason.empty()) train(false);
    EXPECT_EQ(job.step - risen_at, 128) << "each rise doubles the wait";
  }
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
