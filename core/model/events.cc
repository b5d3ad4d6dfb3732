#include "core/model/events.h"

#include <cstdio>
#include <nlohmann/json.hpp>

namespace deft::model {
namespace {

using nlohmann::json;

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

// A field of halves alone.
std::string half_of(AllReduceHalf half) {
  if (half == AllReduceHalf::kBoth) return "";
  return half == AllReduceHalf::kReduceScatter ? R"(,"half":"reduce-scatter")" : R"(,"half":"all-gather")";
}

std::string fields_of(const SendSpan& send, const Event& event) {
  return R"("kind":"send","link":)" + quoted(event.link) + R"(,"bucket":)" + quoted(event.bucket) + R"(,"offset":)" +
         std::to_string(send.offset) + R"(,"bytes":)" + std::to_string(send.bytes) + R"(,"generation":)" +
         std::to_string(send.generation) + format(R"(,"start_us":%.3f,"end_us":%.3f)", send.start_us, send.end_us) +
         half_of(send.half);
}

std::string fields_of(const UpdateMark& mark, const Event& event) {
  std::string steps;
  for (auto step = mark.first_step; step <= mark.last_step; ++step)
    steps += (steps.empty() ? "" : ",") + std::to_string(step);
  return R"("kind":"update","bucket":)" + quoted(event.bucket) + R"(,"generation":)" + std::to_string(mark.generation) +
         R"(,"steps":[)" + steps + format(R"(],"at_us":%.3f)", mark.at_us);
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

}  // namespace deft::model
