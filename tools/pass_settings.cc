#include "tools/pass_settings.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/config.h"
#include "core/base/policy_traits.h"
#include "core/compress/compression_option.h"
#include "core/optimize/codec_floors.h"
#include "core/optimize/replays.h"

namespace deft::tools {
namespace {

using nlohmann::json;
using optimize::Settings;

constexpr const char* kFloor = "compression_min_bytes";
constexpr const char* kWhatMayBe =
    "a proposal may have policy, bucket_bytes, partition_bytes, credit_bytes, links and compression_min_bytes";

std::string text_of(const json& value) { return value.dump(-1, ' ', true, json::error_handler_t::replace); }

tl::unexpected<Error> wrong(const std::string& why) { return fail(ErrorKind::kInvalid, why, kWhatMayBe); }

// Null: it is not the name of a size.
std::uint64_t Settings::*size_called(std::string_view name) {
  if (name == "bucket_bytes") return &Settings::bucket_bytes;
  if (name == "partition_bytes") return &Settings::partition_bytes;
  return name == "credit_bytes" ? &Settings::credit_bytes : nullptr;
}

// The option's own range; `bucket_bytes` 0 are the traced buckets.
bool can_be(const std::string& name, const json& value) {
  if (!value.is_number_unsigned()) return false;
  const auto bytes = value.get<std::uint64_t>();
  if (name == "bucket_bytes" && bytes == 0) return true;
  return Config::load({}, std::vector{as_variable(name) + "=" + std::to_string(bytes)}, Audience::kWorker).has_value();
}

std::string compression_of(const replay::MeasuredJob& measured) {
  const auto config = replay::config_of(measured.options);
  return config ? compress::compression_of(*config) : "none";
}

}  // namespace

PassSettings::PassSettings(const replay::MeasuredJob& measured, bool is_running)
    : is_running_(is_running),
      links_(optimize::links_of(measured)),
      why_links_stay_(optimize::why_links_stay(measured)),
      compression_(compression_of(measured)),
      own_floor_(optimize::own_codec_floor(measured)) {}

json PassSettings::told(const Settings& settings) const {
  return {{"policy", settings.policy},
          {"bucket_bytes", settings.bucket_bytes},
          {"partition_bytes", settings.partition_bytes},
          {"credit_bytes", settings.credit_bytes},
          {"links", settings.links.empty() ? links_ : settings.links},
          {"compression", settings.compression.empty() ? compression_ : settings.compression},
          {kFloor, std::max(settings.codec_min_bytes, own_floor_.value_or(0))}};
}

Result<Settings> PassSettings::proposed(const std::string& pass, const json& changes, const Settings& best) const {
  Settings settings = best;
  for (const auto& [name, value] : changes.items())
    if (auto ok = change(name, value, settings); !ok) {
      Error error = ok.error();
      error.what = "pass " + pass + " proposes " + name + " = " + text_of(value) + error.what;
      return tl::unexpected(std::move(error));
    }
  if (const std::string what = kept_by_running(best, settings); !what.empty())
    return fail(ErrorKind::kInvalid, "pass " + pass + " proposes other " + what + ", which a running job cannot have",
                "leave that out, or --running");
  return settings;
}

// An error's `what` goes on where "pass mine proposes NAME = VALUE" ends.
Result<void> PassSettings::change(const std::string& name, const json& value, Settings& settings) const {
  if (name == "policy") return change_policy(value, settings);
  if (name == "links") return change_links(value, settings);
  if (name == kFloor) return change_floor(value, settings);
  const auto size = size_called(name);
  if (size == nullptr || !can_be(name, value)) return wrong("");
  settings.*size = value.get<std::uint64_t>();
  return {};
}

Result<void> PassSettings::change_policy(const json& value, Settings& settings) const {
  if (!value.is_string()) return wrong("");
  const auto policies = optimize::exact_policies();
  if (std::ranges::find(policies, value.get<std::string>()) == policies.end())
    return wrong(", which is no policy whose settings are looked for");
  settings.policy = value;
  return {};
}

// Settings have the links in the order of the job, so that the same links are the same settings.
Result<void> PassSettings::change_links(const json& value, Settings& settings) const {
  const auto is_link = [&](const json& name) {
    return name.is_string() && std::ranges::find(links_, name.get<std::string>()) != links_.end();
  };
  if (!value.is_array() || value.empty() || !std::ranges::all_of(value, is_link))
    return fail(ErrorKind::kInvalid, "", "give a list of the names in job[\"links\"]");
  std::vector<std::string> chosen;
  for (const std::string& link : links_)
    if (std::ranges::find(value, json(link)) != value.end()) chosen.push_back(link);
  if (chosen.size() == links_.size()) chosen.clear();
  if (!chosen.empty() && !why_links_stay_.empty())
    return fail(ErrorKind::kInvalid, ", but the job keeps its links: " + why_links_stay_, "leave out links");
  settings.links = std::move(chosen);
  return {};
}

Result<void> PassSettings::change_floor(const json& value, Settings& settings) const {
  if (!can_be(kFloor, value)) return wrong("");
  if (!own_floor_)
    return fail(ErrorKind::kInvalid, ", but the trace does not tell which tensors a codec may encode",
                "trace the job with this version, or leave out compression_min_bytes");
  const auto bytes = value.get<std::uint64_t>();
  if (bytes < *own_floor_)
    return fail(ErrorKind::kInvalid,
                ", which is less than the traced job's " + std::to_string(*own_floor_) +
                    ": the trace does not tell which smaller tensors a codec may encode",
                "propose as much or more");
  settings.codec_min_bytes = bytes == *own_floor_ ? 0 : bytes;
  return {};
}

// Empty: nothing of what has changed.
std::string PassSettings::kept_by_running(const Settings& before, const Settings& after) const {
  if (!is_running_) return "";
  if (before.bucket_bytes != after.bucket_bytes) return "buckets";
  if (before.links != after.links) return "links";
  return before.codec_min_bytes != after.codec_min_bytes ? kFloor : "";
}

}  // namespace deft::tools
