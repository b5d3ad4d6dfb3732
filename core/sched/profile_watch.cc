#include "core/sched/profile_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace deft::sched {
namespace {

constexpr double kMoved = 0.1;  // a change of a time or a throughput that is worth a new decision
// Of a codec: its times vary more, because encoding shares cores and memory with compute.
constexpr double kCodecMoved = 0.2;

bool moved(double now, double then, double least = kMoved) {
  return now > then + least * then || now < then - least * then;
}

// "a step's compute time (us) went from 100 to 120".
std::string describe_change(const std::string& what, double before, double after) {
  return what + " went from " + std::to_string(std::llround(before)) + " to " + std::to_string(std::llround(after));
}

std::string describe_loss(const std::vector<bool>& lost) {
  std::string links;
  for (std::size_t l = 0; l < lost.size(); ++l)
    if (lost[l]) links += (links.empty() ? "" : ", ") + std::to_string(l);
  return "the loss of link " + links;
}

// What a link takes for a byte with a codec. No plan uses a codec that takes longer than exact gradients, so how slow that one is does not
// matter.
double us_of_byte(const model::CodecCost& codec, model::LinkIndex link, double exact_us) {
  return std::min(exact_us, std::max(exact_us * codec.share_on(link), codec.thread_us_per_byte()));
}

std::string describe_codec(const model::CodecCost& now, const model::CodecCost& then) {
  constexpr double kMegabyte = 1e6;
  return describe_change("the time of codec " + now.name + " (us a MB)", then.thread_us_per_byte() * kMegabyte,
                         now.thread_us_per_byte() * kMegabyte);
}

// Names the first codec whose time has moved beside that of this link, which counts as unchanged.
std::string describe_codecs(const model::Profile& now, const model::Profile& then, model::LinkIndex link) {
  const double exact_us = 1 / now.link_model(link).bytes_per_us;
  for (std::size_t i = 1; i < std::min(now.codecs.size(), then.codecs.size()); ++i)
    if (moved(us_of_byte(now.codecs[i], link, exact_us), us_of_byte(then.codecs[i], link, exact_us), kCodecMoved))
      return describe_codec(now.codecs[i], then.codecs[i]);
  if (!now.fixed_codec || !then.fixed_codec) return "";
  const auto us_with = [exact_us](const model::CodecCost& codec) { return exact_us + codec.thread_us_per_byte(); };
  return moved(us_with(*now.fixed_codec), us_with(*then.fixed_codec), kCodecMoved)
             ? describe_codec(*now.fixed_codec, *then.fixed_codec)
             : "";
}

// Names the times that have moved away from the profile of the last decision. Empty: none moved enough. Lost links do not count.
std::string describe_move(const model::Profile& now, const model::Profile& then, const std::vector<bool>& lost) {
  if (moved(now.compute_us(), then.compute_us()))
    return describe_change("a step's compute time (us)", then.compute_us(), now.compute_us());
  if (std::abs(now.forward_us() - then.forward_us()) > kMoved * then.compute_us())  // its share matters, not itself
    return describe_change("the forward time (us)", then.forward_us(), now.forward_us());
  for (std::size_t l = 0; l < now.links.size(); ++l) {
    if (lost[l]) continue;
    const double before = then.link_model(l).bytes_per_us * 8, after = now.link_model(l).bytes_per_us * 8;
    if (moved(after, before))
      return describe_change("link " + std::to_string(l) + "'s throughput (Mbit/s)", before, after);
  }
  std::string text;
  for (model::LinkIndex l = 0; l < now.links.size() && text.empty(); ++l)
    if (!lost[l]) text = describe_codecs(now, then, l);
  return text;
}

std::string describe_latency(const model::Profile& now, const model::Profile& then, const std::vector<bool>& lost) {
  for (std::size_t l = 0; l < lost.size(); ++l) {
    const double before = then.links[l].latency_us, after = now.links[l].latency_us;
    if (!lost[l] && moved(after, before))
      return describe_change("link " + std::to_string(l) + "'s latency (us)", before, after);
  }
  return "";
}

}  // namespace

std::optional<plan::ReplanReason> ProfileWatch::look(const model::Profile& profile, std::uint64_t step,
                                                     const std::function<plan::ReplanReason()>& own) {
  trigger_.looked(step, has_decided());
  plan::ReplanReason found = reason(profile, own);
  if (!trigger_.confirm(found)) return std::nullopt;
  return found;
}

plan::ReplanReason ProfileWatch::reason(const model::Profile& profile,
                                        const std::function<plan::ReplanReason()>& own) const {
  if (lost_ != lost_then_) return {describe_loss(lost_), true, true};
  if (!decided_for_) return {"the first profile", true, false};
  plan::ReplanReason others = own ? own() : plan::ReplanReason{};
  if (others.immediate) return others;
  std::string text = describe_move(profile, *decided_for_, lost_);
  if (text.empty() && latencies_) text = describe_latency(profile, *decided_for_, lost_);
  return text.empty() ? others : plan::ReplanReason{std::move(text), false, false};
}

void ProfileWatch::decided(const model::Profile& profile) {
  decided_for_ = profile;
  lost_then_ = lost_;
  trigger_.decided();
}

void ProfileWatch::link_lost(std::size_t link) {
  lost_[link] = true;
  trigger_.hurry();
}

model::Profile ProfileWatch::remaining(const model::Profile& profile) const {
  std::vector<model::LinkIndex> links;
  for (model::LinkIndex l = 0; l < lost_.size(); ++l)
    if (!lost_[l]) links.push_back(l);
  return model::keep_links(profile, links);
}

}  // namespace deft::sched
