#include "core/base/text.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace deft {
namespace {

TEST(Text, WellFormedUtf8OfEveryLength) {
  for (const char* text : {"", "plain", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_TRUE(is_utf8(text)) << text;
}

TEST(Text, OverlongCutSurrogateAndTooLargeCharactersAreNoUtf8) {
  for (const char* text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2 ", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
                           "\xf0\x8f\xbf\xbf", "\xf0\x9f\x92", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff"})
    EXPECT_FALSE(is_utf8(text)) << text;
}

TEST(Text, ControlCharactersAreFound) {
  for (const char* text : {"a\nb", "\t", "\x1b[2J", "\x7f"}) EXPECT_TRUE(has_control_characters(text));
  EXPECT_FALSE(has_control_characters("\xc3\xa4 ~"));
}

TEST(Text, ControlCharactersBecomeVisibleAndAllElseStays) {
  EXPECT_EQ(escape_controls("a\nb\r\t\x1b[2J\x7f\xc2\x9b"
                            "2J"),
            "a\\nb\\r\\t\\x1b[2J\\x7f\\x9b2J");
  for (const char* plain : {"", "plain", "\xc3\xa4 ~", "\xc2\xa0", "\xe2\x82\xac", "\xff"})
    EXPECT_EQ(escape_controls(plain), plain);
  EXPECT_EQ(escape_controls(std::string_view("\0", 1)), "\\x00");
}

TEST(Text, ReadableTextsAreUtf8WithoutControlCharactersAndCut) {
  EXPECT_EQ(readable("a\xff\x1b"
                     "b",
                     100),
            "a?\\x1bb");
  EXPECT_EQ(readable("abc\xc3\xa4", 4), "abc");
  EXPECT_EQ(readable("abc\n", 4), "abc") << "a character is shown as a whole";
  EXPECT_EQ(readable("abc\n", 5), "abc\\n");
}

TEST(Text, AnErrorNamesTheFieldAndNotTheText) {
  const auto what = [](std::string_view text) { return check_name(text, 3, "the name").error().what; };
  EXPECT_EQ(what(""), "the name is empty");
  EXPECT_EQ(what("four"), "the name has 4 bytes, more than 3");
  EXPECT_EQ(what("\xff"), "the name is not valid UTF-8");
  EXPECT_EQ(what("a\n"), "the name holds control characters");
  EXPECT_TRUE(check_name("abc", 3, "the name"));
  EXPECT_TRUE(check_text("", 3, "the name"));
}

struct Nic {
  std::string name;
  [[nodiscard]] std::string link() const { return "gloo:" + name; }
};

TEST(Text, JoinedHasTheSeparatorBetweenEachTwo) {
  EXPECT_EQ(joined(std::vector<std::string>{}, ", "), "");
  EXPECT_EQ(joined(std::vector<std::string>{"eth0"}, ", "), "eth0");
  EXPECT_EQ(joined(std::vector<std::string_view>{"eth0", "eth1", ""}, ", "), "eth0, eth1, ");
}

TEST(Text, JoinedTakesTheTextThatItIsGiven) {
  const std::vector<Nic> nics = {{"eth0"}, {"eth1"}};
  EXPECT_EQ(joined(nics, " ", &Nic::name), "eth0 eth1");
  EXPECT_EQ(joined(nics, " ", &Nic::link), "gloo:eth0 gloo:eth1");
  const std::map<std::string, int> ports = {{"a", 1}, {"b", 2}};
  EXPECT_EQ(joined(ports, ",", [](const auto& one) { return one.first + std::to_string(one.second); }), "a1,b2");
}

}  // namespace
}  // namespace deft
