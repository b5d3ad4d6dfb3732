#include "core/model/link_costs.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/text_file.h"
#include "core/model/profile.h"

namespace deft::model {
namespace {

using Json = nlohmann::json;

constexpr auto* kHowToMake = "make it by deft probe --output FILE";

// A number of `entry` from `least` to `most`; NaN if there is none.
double number(const Json& entry, const char* field, double least, double most) {
  const auto found = entry.find(field);
  if (found == entry.end() || !found->is_number()) return std::nan("");
  const auto value = found->get<double>();
  return value >= least && value <= most ? value : std::nan("");
}

Result<LinkModel> read_link(const Json& entry, std::size_t index) {
  const auto wrong = [&](const std::string& field) {
    return fail(ErrorKind::kInvalid, "profile_links[" + std::to_string(index) + "]" + field, kHowToMake);
  };
  if (!entry.is_object()) return wrong(" is no object");
  const auto name = entry.find("name");
  if (name == entry.end() || !name->is_string()) return wrong(".name is missing");
  LinkModel link{name->get<std::string>(), number(entry, "latency_us", 0, kMaxProfileUs),
                 number(entry, "bytes_per_us", 1e-6, kMaxBytesPerUs)};
  if (std::isnan(link.latency_us)) return wrong(".latency_us is no time");
  if (std::isnan(link.bytes_per_us)) return wrong(".bytes_per_us is no throughput");
  return link;
}

// Sums of the weighted straight line us = a + b * bytes; a weight is 1 / us^2.
struct Sums {
  double w = 0, x = 0, xx = 0, y = 0, xy = 0;
};

Sums sums_of(std::span<const LinkSample> samples) {
  Sums s;
  for (const LinkSample& sample : samples) {
    const double w = 1 / (sample.us * sample.us), x = static_cast<double>(sample.bytes);
    s.w += w;
    s.x += w * x;
    s.xx += w * x * x;
    s.y += w * sample.us;
    s.xy += w * x * sample.us;
  }
  return s;
}

Result<void> check(std::span<const LinkSample> samples) {
  std::set<std::uint64_t> sizes;
  for (const LinkSample& sample : samples) {
    if (!std::isfinite(sample.us) || sample.us <= 0) {
      return fail(ErrorKind::kInvalid, "a transfer of " + std::to_string(sample.us) + " us cannot be");
    }
    sizes.insert(sample.bytes);
  }
  if (sizes.size() >= 3) return {};
  return fail(ErrorKind::kInvalid,
              std::to_string(sizes.size()) + " sizes are too few for a latency, a throughput and their errors");
}

}  // namespace

Result<std::vector<LinkModel>> parse_link_costs(std::string_view json) {
  const Json root = Json::parse(json, nullptr, false);
  const auto list = root.is_object() ? root.find("profile_links") : root.end();
  if (!root.is_object() || list == root.end() || !list->is_array())
    return fail(ErrorKind::kInvalid, "there is no JSON object with a list 'profile_links'", kHowToMake);
  if (list->size() > kMaxProfileLinks)
    return fail(ErrorKind::kInvalid, "profile_links has more than " + std::to_string(kMaxProfileLinks) + " links");
  std::vector<LinkModel> costs;
  for (const Json& entry : *list) {
    auto link = read_link(entry, costs.size());
    if (!link) return tl::unexpected(link.error());
    if (find_cost(costs, link->name) != nullptr)
      return fail(ErrorKind::kInvalid, "profile_links names " + link->name + " twice");
    costs.push_back(*std::move(link));
  }
  return costs;
}

Result<std::vector<LinkModel>> read_link_costs(const std::string& path) {
  const auto text = read_text_file("the links' costs from", path, kMaxProfileText, kHowToMake);
  if (!text) return tl::unexpected(text.error());
  auto costs = parse_link_costs(*text);
  if (!costs) return tl::unexpected(costs.error().in(path));
  return costs;
}

const LinkModel* find_cost(std::span<const LinkModel> costs, std::string_view link) {
  const auto found = std::ranges::find(costs, link, &LinkModel::name);
  return found == costs.end() ? nullptr : &*found;
}

Result<LinkFit> fit_link(std::span<const LinkSample> samples) {
  if (auto ok = check(samples); !ok) return tl::unexpected(ok.error());
  const Sums s = sums_of(samples);
  const double determinant = s.w * s.xx - s.x * s.x;
  double a = (s.xx * s.y - s.x * s.xy) / determinant;
  double b = (s.w * s.xy - s.x * s.y) / determinant;
  if (a < 0) {
    a = 0;
    b = s.xy / s.xx;
  }
  if (!(b > 0)) return fail(ErrorKind::kInvalid, "larger transfers take no longer than small ones: too much noise");
  double deviation = 0;
  for (const LinkSample& sample : samples) {
    const double relative = (a + b * static_cast<double>(sample.bytes)) / sample.us - 1;
    deviation += relative * relative;
  }
  const double variance = deviation / static_cast<double>(samples.size() - 2);
  LinkFit fit;
  fit.latency_us = a;
  fit.latency_error_us = std::sqrt(variance * s.xx / determinant);
  fit.bytes_per_us = 1 / b;
  fit.bytes_per_us_error = std::sqrt(variance * s.w / determinant) / (b * b);
  return fit;
}

}  // namespace deft::model
