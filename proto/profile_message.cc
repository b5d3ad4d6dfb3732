#include "proto/profile_message.h"

namespace deft::messages {

deft::Profile to_message(const model::Profile& profile) {
  deft::Profile message;
  message.set_model(profile.model);
  message.set_source(profile.source);
  for (const auto& bucket : profile.buckets) {
    deft::ProfileBucket& to = *message.add_buckets();
    to.set_name(bucket.name);
    to.set_bytes(bucket.bytes);
    to.set_forward_us(bucket.forward_us);
    to.set_backward_us(bucket.backward_us);
    if (bucket.comm_us) to.set_comm_us(*bucket.comm_us);
  }
  for (const auto& link : profile.links) {
    deft::ProfileLink& to = *message.add_links();
    to.set_name(link.name);
    to.set_latency_us(link.latency_us);
    if (link.relative_time) to.set_relative_time(*link.relative_time);
    if (link.bytes_per_us) to.set_bytes_per_us(*link.bytes_per_us);
  }
  return message;
}

Result<model::Profile> from_message(const deft::Profile& message) {
  model::Profile profile;
  profile.model = message.model();
  profile.source = message.source();
  for (const auto& from : message.buckets()) {
    model::ProfileBucket bucket{from.name(), from.bytes(), from.forward_us(), from.backward_us(), {}};
    if (from.has_comm_us()) bucket.comm_us = from.comm_us();
    profile.buckets.push_back(std::move(bucket));
  }
  for (const auto& from : message.links()) {
    model::ProfileLink link{from.name(), from.latency_us(), {}, {}};
    if (from.has_relative_time()) link.relative_time = from.relative_time();
    if (from.has_bytes_per_us()) link.bytes_per_us = from.bytes_per_us();
    profile.links.push_back(std::move(link));
  }
  if (auto ok = model::check_profile(profile); !ok) return tl::unexpected(ok.error().in("profile"));
  return profile;
}

}  // namespace deft::messages
