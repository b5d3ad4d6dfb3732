#include "core/model/profile.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/base/numbers.h"
#include "core/base/text.h"
#include "core/model/tensors.h"

namespace deft::model {
namespace {

tl::unexpected<Error> at(const std::string& place, const std::string& what, std::string fix = {}) {
  return fail(ErrorKind::kInvalid, place + ": " + what, std::move(fix));
}

Result<void> check_number(const std::string& place, double value, double maximum, std::string_view unit) {
  if (!std::isfinite(value)) return at(place, number_text(value) + " is no finite number");
  if (value < 0) return at(place, number_text(value) + " is negative");
  if (value > maximum)
    return at(place, number_text(value) + " is absurdly large",
              "the largest accepted is " + number_text(maximum) + std::string(unit));
  return {};
}

Result<void> check_positive(const std::string& place, double value, double maximum, std::string_view unit) {
  if (auto ok = check_number(place, value, maximum, unit); !ok) return ok;
  if (value < 1e-9) return at(place, number_text(value) + " is not above zero");
  return {};
}

Result<void> check_bucket(const ProfileBucket& bucket, const std::string& place) {
  if (bucket.name.empty()) return at(place + ".name", "missing");
  if (bucket.bytes == 0) return at(place + ".bytes", "a bucket of zero bytes", "leave empty buckets out");
  if (bucket.bytes > kMaxArenaBytes) return at(place + ".bytes", std::to_string(bucket.bytes) + " is more than 4 TiB");
  if (auto ok = check_number(place + ".forward_us", bucket.forward_us, kMaxProfileUs, " us"); !ok) return ok;
  if (auto ok = check_number(place + ".backward_us", bucket.backward_us, kMaxProfileUs, " us"); !ok) return ok;
  if (bucket.coded_bytes && *bucket.coded_bytes > bucket.bytes)
    return at(place + ".coded_bytes", std::to_string(*bucket.coded_bytes) + " is more than the bucket has");
  if (bucket.element_bytes != 2 && bucket.element_bytes != 4)
    return at(place + ".element_bytes", std::to_string(bucket.element_bytes) + " is neither 2 nor 4");
  if (bucket.comm_us) return check_number(place + ".comm_us", *bucket.comm_us, kMaxProfileUs, " us");
  return {};
}

Result<void> check_link(const ProfileLink& link, const std::string& place) {
  if (link.name.empty()) return at(place + ".name", "missing");
  if (auto ok = check_number(place + ".latency_us", link.latency_us, kMaxProfileUs, " us"); !ok) return ok;
  if (link.relative_time && link.bytes_per_us)
    return at(place, "has both relative_time and bytes_per_us", "keep the one that is known");
  if (link.relative_time) return check_positive(place + ".relative_time", *link.relative_time, 1e6, "");
  if (link.bytes_per_us) return check_positive(place + ".bytes_per_us", *link.bytes_per_us, kMaxBytesPerUs, "");
  return at(place, "has neither relative_time nor bytes_per_us", "give one of them");
}

Result<void> check_codec(const CodecCost& codec, std::size_t links, const std::string& place) {
  if (codec.name.empty()) return at(place + ".name", "missing");
  if (auto ok = check_positive(place + ".wire_share", codec.wire_share, 2, ""); !ok) return ok;
  for (const auto& [field, value] : {std::pair{".encode_us_per_byte", codec.encode_us_per_byte},
                                     std::pair{".decode_us_per_byte", codec.decode_us_per_byte}})
    if (auto ok = check_number(place + field, value, 1e3, " us"); !ok) return ok;
  if (!codec.link_shares.empty() && codec.link_shares.size() != links)
    return at(place + ".link_shares", "are not as many as links");
  for (const double share : codec.link_shares)
    if (auto ok = check_positive(place + ".link_shares", share, 2, ""); !ok) return ok;
  return check_number(place + ".error", codec.error, 100, "");
}

// The first codec stands for gradients that travel as they are.
Result<void> check_codecs(const std::vector<CodecCost>& codecs, std::size_t links) {
  if (codecs.empty() || codecs.size() > kMaxCodecs) return at("codecs", "there are none, or more than 16");
  for (std::size_t i = 0; i < codecs.size(); ++i)
    if (auto ok = check_codec(codecs[i], links, "codecs[" + std::to_string(i) + "]"); !ok) return ok;
  if (codecs.front() != CodecCost{}) return at("codecs[0]", "is not 'none'", "leave codecs out, or begin with none");
  return {};
}

template <typename Entry>
Result<void> check_names(const std::vector<Entry>& entries, const std::string& list) {
  std::unordered_set<std::string_view> seen;
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (!seen.insert(entries[i].name).second)
      return at(list + "[" + std::to_string(i) + "].name", "'" + entries[i].name + "' is there twice");
  return {};
}

// A link that knows only its ratio to the reference link needs every bucket's time on that link.
Result<void> check_costs(const Profile& profile) {
  const auto relative = std::find_if(profile.links.begin(), profile.links.end(),
                                     [](const ProfileLink& link) { return link.relative_time.has_value(); });
  if (relative == profile.links.end()) return {};
  for (std::size_t i = 0; i < profile.buckets.size(); ++i)
    if (!profile.buckets[i].comm_us)
      return at("buckets[" + std::to_string(i) + "].comm_us",
                "missing, and link '" + relative->name + "' has only a relative_time", "give comm_us or bytes_per_us");
  return {};
}

}  // namespace

Result<void> check_profile(const Profile& profile) {
  if (profile.buckets.empty()) return at("buckets", "there are none", "a profile needs at least one bucket");
  if (profile.links.empty()) return at("links", "there are none", "a profile needs at least one link");
  if (profile.buckets.size() > kMaxProfileBuckets) return at("buckets", "there are more than 100000");
  if (profile.links.size() > kMaxProfileLinks) return at("links", "there are more than 64");
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < profile.buckets.size(); ++i) {
    const std::string place = "buckets[" + std::to_string(i) + "]";
    if (auto ok = check_bucket(profile.buckets[i], place); !ok) return ok;
    total += profile.buckets[i].bytes;
    if (total > kMaxArenaBytes) return at(place + ".bytes", "the buckets are more than 4 TiB together");
  }
  for (std::size_t i = 0; i < profile.links.size(); ++i)
    if (auto ok = check_link(profile.links[i], "links[" + std::to_string(i) + "]"); !ok) return ok;
  if (auto ok = check_names(profile.buckets, "buckets"); !ok) return ok;
  if (auto ok = check_names(profile.links, "links"); !ok) return ok;
  if (auto ok = check_codecs(profile.codecs, profile.links.size()); !ok) return ok;
  if (auto ok = check_names(profile.codecs, "codecs"); !ok) return ok;
  if (profile.compute_us() <= 0) return at("buckets", "all forward and backward times are zero");
  return check_costs(profile);
}

PartCost Profile::cost(std::size_t bucket, std::size_t link) const {
  const ProfileBucket& b = buckets[bucket];
  const ProfileLink& l = links[link];
  if (l.bytes_per_us) return {l.latency_us, 1.0 / *l.bytes_per_us};
  const double whole_us = b.comm_us.value_or(0) * l.relative_time.value_or(1);
  const double fixed_us = std::min(l.latency_us, whole_us);
  return {fixed_us, (whole_us - fixed_us) / static_cast<double>(b.bytes)};
}

PartCost Profile::cost(std::size_t bucket, std::size_t link, CodecIndex codec) const {
  PartCost exact = cost(bucket, link);
  if (codec == 0) return exact;
  const CodecCost& by = codecs.at(codec);
  const CodedShare coded = buckets[bucket].coded_share();
  const double wire_us = exact.us_per_byte * by.bytes_share(coded, static_cast<LinkIndex>(link));
  return {exact.fixed_us, std::max(wire_us, by.thread_us_per_byte(coded))};
}

double Profile::forward_us() const {
  double sum = 0;
  for (const auto& bucket : buckets) sum += bucket.forward_us;
  return sum;
}

double Profile::backward_us() const {
  double sum = 0;
  for (const auto& bucket : buckets) sum += bucket.backward_us;
  return sum;
}

std::uint64_t Profile::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& bucket : buckets) sum += bucket.bytes;
  return sum;
}

LinkModel Profile::link_model(std::size_t link) const {
  const ProfileLink& l = links[link];
  if (l.bytes_per_us) return {l.name, l.latency_us, *l.bytes_per_us};
  double bytes = 0;
  double us = 0;
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    bytes += static_cast<double>(buckets[i].bytes);
    us += cost(i, link).us_per_byte * static_cast<double>(buckets[i].bytes);
  }
  return {l.name, l.latency_us, us * kMaxBytesPerUs > bytes ? bytes / us : kMaxBytesPerUs};
}

Profile keep_links(const Profile& profile, std::span<const LinkIndex> links) {
  Profile out = profile;
  out.links.clear();
  for (CodecCost& codec : out.codecs) codec.link_shares.clear();
  for (const LinkIndex link : links) {
    out.links.push_back(profile.links[link]);
    for (std::size_t i = 0; i < out.codecs.size(); ++i)
      if (!profile.codecs[i].link_shares.empty()) out.codecs[i].link_shares.push_back(profile.codecs[i].share_on(link));
  }
  return out;
}

Result<Profile> with_links(const Profile& profile, const std::vector<std::string>& names) {
  std::vector<LinkIndex> links;
  for (const auto& name : names) {
    const auto it = std::find_if(profile.links.begin(), profile.links.end(),
                                 [&](const ProfileLink& link) { return link.name == name; });
    if (it == profile.links.end()) {
      const std::string known = joined(profile.links, ", ", &ProfileLink::name);
      return fail(ErrorKind::kInvalid, "the profile has no link '" + name + "'", "it has " + known);
    }
    links.push_back(static_cast<LinkIndex>(it - profile.links.begin()));
  }
  Profile out = keep_links(profile, links);
  if (auto ok = check_profile(out); !ok) return tl::unexpected(ok.error().in("links"));
  return out;
}

std::vector<double> ready_times(const Profile& profile) {
  std::vector<double> times;
  double at_us = 0;
  for (std::size_t i = 0; i < profile.buckets.size(); ++i)
    times.push_back(at_us += profile.buckets[produced(profile, i)].backward_us);
  return times;
}

std::size_t fastest_link(const Profile& profile) {
  std::size_t best = 0;
  const auto time_us = [&](std::size_t link) {
    double sum = 0;
    for (std::size_t i = 0; i < profile.buckets.size(); ++i) sum += profile.comm_us(i, link);
    return sum;
  };
  for (std::size_t link = 1; link < profile.links.size(); ++link)
    if (time_us(link) < time_us(best)) best = link;
  return best;
}

}  // namespace deft::model
