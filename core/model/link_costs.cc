#include "core/model/link_costs.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/model/profile.h"

namespace deft::model {
namespace {

using Json = nlohmann::json;

constexpr auto* kHowToMake = "make it by deft probe --output FILE";

// A number of `entry` from `least` to `most`; NaN where there is none.
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
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(ErrorKind::kInvalid, "cannot read the links' costs from " + path, kHowToMake);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  auto costs = parse_link_costs(text);
  if (!costs) return tl::unexpected(costs.error().in(path));
  return costs;
}

const LinkModel* find_cost(std::span<const LinkModel> costs, std::string_view link) {
  const auto found = std::ranges::find(costs, link, &LinkModel::name);
  return found == costs.end() ? nullptr : &*found;
}

}  // namespace deft::model
