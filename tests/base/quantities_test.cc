#include "core/base/quantities.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "core/base/numbers.h"

namespace deft {
namespace {

TEST(Quantities, HaveUnitsInAnyCaseAndBlanksBeforeThem) {
  EXPECT_EQ(parse_bytes("4MB"), 4194304);
  EXPECT_EQ(parse_bytes("4 mib"), 4194304);
  EXPECT_EQ(parse_bytes("1.5k"), 1536);
  EXPECT_EQ(parse_bytes("7"), 7);
  EXPECT_EQ(parse_seconds("500ms"), 0.5);
  EXPECT_EQ(parse_seconds("2m"), 120);
  for (const char* text : {"", "MB", "4 apples", "nan", "inf", "4MB more"}) EXPECT_FALSE(parse_bytes(text)) << text;
  EXPECT_FALSE(parse_number("4MB"));
}

TEST(Numbers, AreAllOfTheirText) {
  EXPECT_EQ(parse_whole<std::uint16_t>("65535"), 65535);
  EXPECT_EQ(parse_whole<int>("-1"), -1);
  EXPECT_EQ(parse_whole<double>("0.5"), 0.5);
  for (const char* text : {"", " 1", "1 ", "1x", "+1", "-1", "0x1", "65536"})
    EXPECT_FALSE(parse_whole<std::uint16_t>(text)) << text;
  EXPECT_EQ(number_text(1.0 / 3), "0.333333");
}

TEST(Quantities, OutOfRangeNameTheFlag) {
  EXPECT_EQ(parse_size("--memory", "8G").value(), std::uint64_t{8} << 30);
  EXPECT_EQ(parse_duration("--budget", "60s").value(), 60'000'000);
  for (const char* text : {"0", "-1MB", "1025TB", "soon"}) {
    const auto size = parse_size("--memory", text);
    ASSERT_FALSE(size) << text;
    EXPECT_NE(size.error().message().find("--memory is '" + std::string(text) + "'"), std::string::npos);
  }
  for (const char* text : {"-1s", "25h", "soon"}) EXPECT_FALSE(parse_duration("--budget", text)) << text;
}

TEST(Quantities, AreShownInTheUnitThatPeopleRead) {
  EXPECT_EQ(size_words(8), "8 B");
  EXPECT_EQ(size_words(1.5 * 1048576), "1.5 MB");
  EXPECT_EQ(size_words(1e12), "931.3 GB");
}

}  // namespace
}  // namespace deft
