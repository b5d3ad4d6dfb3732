// Codecs by name, and what careless users write.
#include "core/compress/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace deft::compress
