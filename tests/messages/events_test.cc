// Events as lines of JSON: any event's line is one JSON object with exactly its fields.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/model/events.h"

namespace deft::model {
namespace {

using nlohmann::json;

double any_time() { return std::floor(*rc::gen::inRange<std::int64_t>(0, 4'000'000'000'000) / 1.0) / 1000; }

// Text, not any bytes: quotes, backslashes and control characters among it.
std::string any_name() { return *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange('\x01', '\x7f'))); }

std::uint64_t any_number() { return *rc::gen::inRange<std::uint64_t>(0, 1'000'000); }

// Written and read again; times have three digits behind the point.
json line_of(const Event& event) {
  const std::string line = event_line(event);
  RC_ASSERT(line.find('\n') == std::string::npos);
  const json object = json::parse(line, nullptr, false);
  RC_ASSERT(object.is_object());
  return object;
}

void check_time(const json& object, const char* field, double us) {
  RC_ASSERT(std::abs(object.at(field).get<double>() - us) <= 5e-4 + 1e-12 * us);
}

RC_GTEST_PROP(EventLine, OfComputeHasItsFields, ()) {
  const ComputeSpan span{*rc::gen::element(Stage::kForward, Stage::kBackward), any_number(), 0, any_time(), any_time()};
  const Event event{any_name(), any_name(), {}, span};
  const json object = line_of(event);
  RC_ASSERT(object.size() == 7U);
  RC_ASSERT(object.at("policy") == event.policy && object.at("bucket") == event.bucket);
  RC_ASSERT(object.at("kind") == "compute");
  RC_ASSERT(object.at("stage") == (span.stage == Stage::kForward ? "forward" : "backward"));
  RC_ASSERT(object.at("step") == span.step);
  check_time(object, "start_us", span.start_us);
  check_time(object, "end_us", span.end_us);
}

RC_GTEST_PROP(EventLine, OfASendHasItsFields, ()) {
  const SendSpan send{0, 0, any_number(), any_number(), any_number(), any_time(), any_time()};
  const Event event{any_name(), any_name(), any_name(), send};
  const json object = line_of(event);
  RC_ASSERT(object.size() == 9U);
  RC_ASSERT(object.at("policy") == event.policy && object.at("bucket") == event.bucket);
  RC_ASSERT(object.at("kind") == "send" && object.at("link") == event.link);
  RC_ASSERT(object.at("generation") == send.generation);
  RC_ASSERT(object.at("offset") == send.offset && object.at("bytes") == send.bytes);
  check_time(object, "start_us", send.start_us);
  check_time(object, "end_us", send.end_us);
}

RC_GTEST_PROP(EventLine, OfAnUpdateNamesEachStep, ()) {
  const std::uint64_t first = any_number();
  const UpdateMark mark{0, any_number(), first, first + *rc::gen::inRange<std::uint64_t>(0, 20), any_time()};
  const Event event{any_name(), any_name(), {}, mark};
  const json object = line_of(event);
  RC_ASSERT(object.size() == 6U);
  RC_ASSERT(object.at("policy") == event.policy && object.at("bucket") == event.bucket);
  RC_ASSERT(object.at("kind") == "update" && object.at("generation") == mark.generation);
  std::vector<std::uint64_t> steps;
  for (auto step = mark.first_step; step <= mark.last_step; ++step) steps.push_back(step);
  RC_ASSERT(object.at("steps") == steps);
  check_time(object, "at_us", mark.at_us);
}

TEST(EventLine, OfHalfAnAllReduceNamesTheHalf) {
  const auto half = [](AllReduceHalf of) {
    return line_of({"dear", "b", "l", SendSpan{0, 0, 0, 0, 64, 0, 1, of}}).value("half", "none");
  };
  EXPECT_EQ(half(AllReduceHalf::kReduceScatter), "reduce-scatter");
  EXPECT_EQ(half(AllReduceHalf::kAllGather), "all-gather");
  EXPECT_EQ(half(AllReduceHalf::kBoth), "none");
}

TEST(EventLine, namesBucketsAndLinksOfATimeline) {
  const Timeline timeline{{{Stage::kForward, 0, 1, 0, 5}}, {{1, 0, 2, 0, 64, 1, 2}}, {{1, 2, 0, 0, 7}}};
  const auto events = events_of(timeline, "fifo", {"first", "second"}, {"nic0", "nic1"});
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].bucket, "second");
  EXPECT_EQ(events[1].bucket, "first");
  EXPECT_EQ(events[1].link, "nic1");
  EXPECT_EQ(event_line(events[2]),
            R"({"policy":"fifo","kind":"update","bucket":"second","generation":2,"steps":[0],"at_us":7.000})");
}

}  // namespace
}  // namespace deft::model
