// Codecs by name, and what careless users write.
#include "core/compress/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/compress/codec_costs.h"
#include "tests/compress/codec_cases.h"

namespace deft::compress {
namespace {

using ::testing::HasSubstr;

std::string message_of(const std::string& text) {
  const auto made = make_codec(text);
  return made ? "made" : made.error().message();
}

TEST(CodecNames, EachMakesItself) {
  for (const std::string_view name : codec_names()) {
    const auto made = make_codec(name);
    ASSERT_TRUE(made.has_value()) << name;
    EXPECT_EQ((*made)->traits().name, name);
  }
  EXPECT_EQ(codec_cases().size() >= codec_names().size(), true) << "each codec needs a case in codec_cases.h";
}

TEST(CodecNames, AParameterlessCodecRefusesParameters) {
  EXPECT_THAT(message_of("int8/ratio=0.01"), HasSubstr("no parameter 'ratio'"));
  EXPECT_THAT(message_of("int8/ratio"), HasSubstr("no key=value"));
  EXPECT_THAT(message_of("int8/=3"), HasSubstr("no key=value"));
  EXPECT_EQ(message_of("int8/"), "made");
}

TEST(CodecNames, AMisspellingGetsASuggestion) {
  EXPECT_THAT(message_of("imt8"), HasSubstr("did you mean int8?"));
  EXPECT_THAT(message_of("INT8"), HasSubstr("int8"));
  EXPECT_THAT(message_of("zstandard"), HasSubstr("choose bf16, fp16, int8"));
  EXPECT_THAT(message_of(""), HasSubstr("no codec is called ''"));
}

TEST(CodecNames, ARatioThatMakesNoSenseIsRefusedWithItsRange) {
  for (const char* text :
       {"randk/ratio=0", "randk/ratio=2", "randk/ratio=-1", "randk/ratio=nan", "randk/ratio=", "randk/ratio=0.1x"})
    EXPECT_THAT(message_of(text), HasSubstr("is out of range (give ratio=0.00390625 to 1)")) << text;
  for (const char* text : {"topk/ratio=0", "topk/ratio=2", "dgc/ratio=0"})
    EXPECT_THAT(message_of(text), HasSubstr("is out of range (give ratio=1e-06 to 1)")) << text;
  EXPECT_THAT(message_of("randk/ratoi=0.1"), HasSubstr("did you mean ratio?"));
  EXPECT_THAT(message_of("randk/ratio=0.1,ratio=0.2"), HasSubstr("one value, not two"));
  EXPECT_THAT(message_of("qsgd/levels=128"), HasSubstr("give levels=1 to 127"));
  EXPECT_THAT(message_of("signum/momentum=1"), HasSubstr("give momentum=0 to 0.9999"));
}

TEST(CodecNames, ANameOutlivesTheTextThatChoseIt) {
  auto text = std::make_unique<std::string>("efsignsgd");
  const CodecPointer codec = codec_of(*text);
  text->assign("?????????");
  EXPECT_EQ(codec->traits().name, "efsignsgd");
}

TEST(CodecNames, ARankOrMethodThatMakesNoSenseIsRefused) {
  for (const char* text : {"lowrank/rank=0", "lowrank/rank=33", "lowrank/rank=-1", "lowrank/rank=2.5", "lowrank/rank="})
    EXPECT_THAT(message_of(text), HasSubstr("is out of range (give rank=1 to 32)")) << text;
  EXPECT_THAT(message_of("lowrank/method=powersdg"),
              HasSubstr("method=powersdg does not exist (did you mean powersgd?)"));
  EXPECT_THAT(message_of("lowrank/method=svd"), HasSubstr("method=svd does not exist (give method=acp or powersgd)"));
  EXPECT_THAT(message_of("lowrank/method=acp,method=acp"), HasSubstr("one value, not two"));
  EXPECT_THAT(message_of("lowrank/ranks=4"), HasSubstr("did you mean rank?"));
  EXPECT_THAT(message_of("lowrnak"), HasSubstr("did you mean lowrank?"));
  EXPECT_EQ(message_of("lowrank/rank=32"), "made");
}

// What a factor stands for depends on a matrix, which a slice is not.
TEST(CodecNames, LowRankRefusesSlices) {
  const CodecPointer codec = codec_of("lowrank");
  EXPECT_EQ(codec->traits().law, Law::kLowRank);
  Floats values(256), residual(256);
  Bytes code(codec->encoded_bytes(256));
  std::size_t garbage = 7;
  const std::vector<std::span<const std::byte>> inputs{code, code};
  EXPECT_FALSE(codec->encode({}, values, code));
  EXPECT_FALSE(codec->encode_with_feedback({}, values, residual, code));
  EXPECT_FALSE(codec->decode({}, code, values));
  EXPECT_FALSE(codec->decode_add({}, code, values));
  EXPECT_FALSE(codec->combine({}, inputs, code, {}, garbage));
}

TEST(CodecNames, TheCostOfLowRankIsThatOfAMatrix) {
  const model::CodecCost few = measure_cost(*codec_of("lowrank/rank=2")),
                         many = measure_cost(*codec_of("lowrank/rank=16"));
  EXPECT_DOUBLE_EQ(few.wire_share, 2.0 / 256);
  EXPECT_DOUBLE_EQ(many.wire_share, 16.0 / 256);
  EXPECT_DOUBLE_EQ(measure_cost(*codec_of("lowrank/rank=2,method=powersgd")).wire_share, 4.0 / 256);
  EXPECT_GT(few.error, many.error);
  EXPECT_LT(few.error, 1);
  EXPECT_GT(many.encode_us_per_byte, 0);
  EXPECT_EQ(few.name, "lowrank/rank=2,method=acp");
}

TEST(CodecNames, ParametersHaveOneSpelling) {
  EXPECT_EQ(codec_of("randk/seed=7,ratio=0.50")->traits().parameters, "ratio=0.5,unbiased=0,seed=7");
  EXPECT_EQ(codec_of("qsgd")->traits().parameters, "levels=64,seed=0");
  EXPECT_EQ(codec_of("lowrank")->traits().parameters, "rank=4,method=acp");
  EXPECT_EQ(codec_of("int8")->traits().parameters, "");
}

}  // namespace
}  // namespace deft::compress
