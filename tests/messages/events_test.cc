// Events as a line of JSON and as a message, and back: nothing is lost, and what is wrong is refused by its field's name.
#include <gmock/gmock.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "proto/trace_message.h"

namespace deft::messages {
namespace {

using model::Event;
using testing::HasSubstr;

double any_time() { return std::floor(*rc::gen::inRange<std::int64_t>(0, 4'000'000'000'000) / 1.0) / 1000; }

// Text, not any bytes: quotes, backslashes and control characters among it.
std::string any_name() { return *rc::gen::nonEmpty(rc::gen::container<std::string>(rc::gen::inRange('\x01', '\x7f'))); }

Event any_event() {
  Event event{any_name(), any_name(), {}, model::UpdateMark{}};
  const double start = any_time(), end = start + any_time();
  const auto number = rc::gen::inRange<std::uint64_t>(0, 1'000'000);
  switch (*rc::gen::inRange(0, 3)) {
    case 0:
      event.what = model::ComputeSpan{*rc::gen::element(model::Stage::kForward, model::Stage::kBackward), *number, 0,
                                      start, end};
      break;
    case 1:
      event.link = any_name();
      event.what = model::SendSpan{0, 0, *number, *number, *number + 1, start, end};
      break;
    default: {
      const std::uint64_t first = *number;
      event.what = model::UpdateMark{0, *number, first, first + *rc::gen::inRange<std::uint64_t>(0, 20), end};
    }
  }
  return event;
}

RC_GTEST_PROP(EventMessage, LosesNothing, ()) {
  const Event event = any_event();
  deft::Event message;
  RC_ASSERT(message.ParseFromString(to_message(event).SerializeAsString()));
  const auto again = from_message(message);
  if (!again) RC_FAIL(again.error().message());
  RC_ASSERT(model::event_line(*again) == model::event_line(event));
}

RC_GTEST_PROP(EventLine, LosesNothing, ()) {
  const Event event = any_event();
  const std::string line = model::event_line(event);
  const auto again = model::parse_event(line);
  if (!again) RC_FAIL(again.error().message() + " in " + line);
  RC_ASSERT(model::event_line(*again) == line);
}

// Any one field of a line taken away, or replaced by what it cannot be.
RC_GTEST_PROP(EventLine, NamesTheFieldAtFault, ()) {
  Event event = any_event();
  event.policy = "p", event.bucket = "b";
  if (!event.link.empty()) event.link = "l";
  auto object = nlohmann::json::parse(model::event_line(event));
  const auto at = *rc::gen::inRange<std::size_t>(0, object.size());
  const std::string name = std::next(object.begin(), static_cast<std::ptrdiff_t>(at)).key();
  if (*rc::gen::arbitrary<bool>())
    object.erase(name);
  else
    object[name] = nlohmann::json::object();
  const auto read = model::parse_event(object.dump());
  RC_ASSERT(!read.has_value());
  RC_ASSERT(read.error().message().find("event." + name) != std::string::npos);
}

TEST(EventLine, saysWhatIsWrong) {
  const std::pair<const char*, const char*> lines[] = {
      {"", "no JSON object"},
      {"[1]", "no JSON object"},
      {R"({"policy":"p","bucket":"b","kind":"wait"})", "event.kind"},
      {R"({"policy":"p","bucket":"b","kind":"compute","stage":"sideways","step":1,"start_us":0,"end_us":1})",
       "event.stage"},
      {R"({"policy":"p","bucket":"b","kind":"compute","stage":"forward","step":-1,"start_us":0,"end_us":1})",
       "event.step"},
      {R"({"policy":"p","bucket":"b","kind":"compute","stage":"forward","step":1,"start_us":2,"end_us":1})",
       "event.end_us"},
      {R"({"policy":"p","bucket":"b","kind":"compute","stage":"forward","step":1,"start_us":0,"end_us":1e300})",
       "event.end_us"},
      {R"({"policy":"p","bucket":"b","kind":"update","generation":1,"steps":[1,3],"at_us":1})", "3 does not follow 1"},
      {R"({"policy":"p","bucket":"b","kind":"update","generation":1,"steps":[],"at_us":1})", "event.steps"},
      {R"({"policy":"p","bucket":"b","kind":"update","generation":1,"steps":[1],"at_us":1,"colour":2})",
       "event.colour"},
      {R"({"policy":"p","bucket":"b","kind":"send","link":"","generation":1,"offset":0,"bytes":4,"start_us":0,"end_us":1})",
       "event.link"},
      {R"({"policy":"p","bucket":"b","kind":"send","link":"l","generation":1,"offset":0,"bytes":0,"start_us":0,"end_us":1})",
       "event.bytes"},
  };
  for (const auto& [line, text] : lines) {
    const auto read = model::parse_event(line);
    ASSERT_FALSE(read) << line;
    EXPECT_THAT(read.error().message(), HasSubstr(text)) << line;
  }
}

TEST(EventMessage, saysWhatIsWrong) {
  EXPECT_THAT(from_message(deft::Event()).error().message(), HasSubstr("event.what"));
  deft::Event message;
  message.set_bucket("b");
  message.mutable_compute();
  EXPECT_THAT(from_message(message).error().message(), HasSubstr("event.stage"));
}

}  // namespace
}  // namespace deft::messages
