#include "core/model/events.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

namespace deft::model {
namespace {

using nlohmann::json;

constexpr double kLongestUs = 1e15;            // as in a profile
constexpr std::uint64_t kMostSteps = 1 << 20;  // that one update merges

tl::unexpected<Error> wrong(const std::string& field, const std::string& what) {
  return fail(ErrorKind::kInvalid, "event." + field + ": " + what);
}

std::string quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

template <typename... T>
std::string format(const char* pattern, T... values) {
  char text[160];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

std::string fields_of(const ComputeSpan& span, const Event& event) {
  return std::string(R"("kind":"compute","stage":)") +
         (span.stage == Stage::kForward ? R"("forward")" : R"("backward")") + R"(,"step":)" +
         std::to_string(span.step) + R"(,"bucket":)" + quoted(event.bucket) +
         format(R"(,"start_us":%.3f,"end_us":%.3f)", span.start_us, span.end_us);
}

std::string fields_of(const SendSpan& send, const Event& event) {
  return R"("kind":"send","link":)" + quoted(event.link) + R"(,"bucket":)" + quoted(event.bucket) + R"(,"offset":)" +
         std::to_string(send.offset) + R"(,"bytes":)" + std::to_string(send.bytes) + R"(,"generation":)" +
         std::to_string(send.generation) + format(R"(,"start_us":%.3f,"end_us":%.3f)", send.start_us, send.end_us);
}

std::string fields_of(const UpdateMark& mark, const Event& event) {
  std::string steps;
  for (auto step = mark.first_step; step <= mark.last_step; ++step)
    steps += (steps.empty() ? "" : ",") + std::to_string(step);
  return R"("kind":"update","bucket":)" + quoted(event.bucket) + R"(,"generation":)" + std::to_string(mark.generation) +
         R"(,"steps":[)" + steps + format(R"(],"at_us":%.3f)", mark.at_us);
}

// Reads the fields of one object and remembers the first that is wrong.
class Reader {
 public:
  explicit Reader(const json& object) : object_(object) {}

  std::string text(const char* name) {
    const json* value = find(name);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    blame(name, "it is no text");
    return {};
  }
  std::uint64_t count(const char* name) {
    const json* value = find(name);
    return value == nullptr ? 0 : whole(name, *value);
  }
  double time_us(const char* name) {
    const json* value = find(name);
    if (value == nullptr) return 0;
    if (value->is_number()) return value->get<double>();
    blame(name, "it is no number");
    return 0;
  }
  // first and last of numbers that follow each other
  std::pair<std::uint64_t, std::uint64_t> steps(const char* name) {
    const json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_array() || value->empty())
      return blame(name, "it is no list of steps"), std::pair<std::uint64_t, std::uint64_t>();
    std::vector<std::uint64_t> steps;
    for (const auto& step : *value) {
      steps.push_back(whole(name, step));
      if (steps.size() > 1 && steps.back() != steps[steps.size() - 2] + 1)
        blame(name, std::to_string(steps.back()) + " does not follow " + std::to_string(steps[steps.size() - 2]));
    }
    return {steps.front(), steps.back()};
  }
  // Fields that were not asked for are refused.
  Result<void> end() {
    for (const auto& [name, value] : object_.items())
      if (!error_ && !asked_.contains(name)) blame(name, "it is not known");
    if (error_) return tl::unexpected(*error_);
    return {};
  }
  void blame(const std::string& field, const std::string& what) {
    if (!error_) error_ = wrong(field, what).value();
  }

 private:
  const json* find(const char* name) {
    asked_.insert(name);
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    blame(name, "it is missing");
    return nullptr;
  }
  std::uint64_t whole(const char* name, const json& value) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    blame(name, "it is no whole number of 0 or more");
    return 0;
  }

  const json& object_;
  std::set<std::string, std::less<>> asked_;
  std::optional<Error> error_;
};

ComputeSpan read_compute(Reader& reader) {
  const std::string stage = reader.text("stage");
  if (stage != "forward" && stage != "backward") reader.blame("stage", "'" + stage + "' is not forward or backward");
  return {stage == "forward" ? Stage::kForward : Stage::kBackward, reader.count("step"), 0, reader.time_us("start_us"),
          reader.time_us("end_us")};
}

SendSpan read_send(Reader& reader) {
  return {0,
          0,
          reader.count("generation"),
          reader.count("offset"),
          reader.count("bytes"),
          reader.time_us("start_us"),
          reader.time_us("end_us")};
}

UpdateMark read_update(Reader& reader) {
  const auto [first, last] = reader.steps("steps");
  return {0, reader.count("generation"), first, last, reader.time_us("at_us")};
}

Result<void> check_time(const char* field, double us) {
  if (std::isfinite(us) && us >= 0 && us <= kLongestUs) return {};
  return wrong(field, std::to_string(us) + " is no time");
}

Result<void> check_span(double start_us, double end_us) {
  if (auto ok = check_time("start_us", start_us); !ok) return ok;
  if (auto ok = check_time("end_us", end_us); !ok) return ok;
  if (end_us < start_us) return wrong("end_us", "it lies before start_us");
  return {};
}

Result<void> check_what(const ComputeSpan& span) {
  if (span.stage != Stage::kForward && span.stage != Stage::kBackward) return wrong("stage", "it is not known");
  return check_span(span.start_us, span.end_us);
}

Result<void> check_what(const SendSpan& send) {
  if (send.bytes == 0) return wrong("bytes", "nothing is sent");
  if (send.offset > UINT64_MAX - send.bytes) return wrong("offset", std::to_string(send.offset) + " is absurd");
  return check_span(send.start_us, send.end_us);
}

Result<void> check_what(const UpdateMark& mark) {
  if (mark.last_step < mark.first_step || mark.last_step - mark.first_step >= kMostSteps)
    return wrong("steps", std::to_string(mark.first_step) + " to " + std::to_string(mark.last_step) + " are absurd");
  return check_time("at_us", mark.at_us);
}

}  // namespace

std::vector<Event> events_of(const Timeline& timeline, std::string_view policy,
                             const std::vector<std::string>& bucket_names, const std::vector<std::string>& link_names) {
  const std::string name(policy);
  std::vector<Event> events;
  events.reserve(timeline.compute.size() + timeline.sends.size() + timeline.updates.size());
  for (const auto& span : timeline.compute) events.push_back({name, bucket_names.at(span.bucket), {}, span});
  for (const auto& send : timeline.sends)
    events.push_back({name, bucket_names.at(send.bucket), link_names.at(send.link), send});
  for (const auto& mark : timeline.updates) events.push_back({name, bucket_names.at(mark.bucket), {}, mark});
  return events;
}

std::string event_line(const Event& event) {
  const auto fields = std::visit([&](const auto& what) { return fields_of(what, event); }, event.what);
  return R"({"policy":)" + quoted(event.policy) + "," + fields + "}";
}

Result<void> check_event(const Event& event) {
  if (event.bucket.empty()) return wrong("bucket", "it has no name");
  if (std::holds_alternative<SendSpan>(event.what) && event.link.empty()) return wrong("link", "it has no name");
  return std::visit([](const auto& what) { return check_what(what); }, event.what);
}

Result<Event> parse_event(std::string_view line) {
  const json object = json::parse(line, nullptr, false);
  if (!object.is_object()) return fail(ErrorKind::kInvalid, "event: the line is no JSON object");
  Reader reader(object);
  Event event{reader.text("policy"), reader.text("bucket"), {}, UpdateMark{}};
  const std::string kind = reader.text("kind");
  if (kind == "compute") {
    event.what = read_compute(reader);
  } else if (kind == "send") {
    event.link = reader.text("link");
    event.what = read_send(reader);
  } else if (kind == "update") {
    event.what = read_update(reader);
  } else {
    reader.blame("kind", "'" + kind + "' is not compute, send or update");
  }
  if (auto ok = reader.end(); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_event(event); !ok) return tl::unexpected(ok.error());
  return event;
}

}  // namespace deft::model
