// Feeds the reader of links' costs with whatever libFuzzer makes up. What is accepted must have numbers that the planner can work with.
#include <cstdint>
#include <string_view>

#include "core/model/link_costs.h"
#include "core/model/profile.h"
#include "tests/fuzz/outcomes.h"

namespace {

using deft::fuzz::die;

deft::fuzz::Outcomes& outcomes() {
  static deft::fuzz::Outcomes found(
      "outcomes of files of links' costs",
      {"no JSON object", "more than", "is no object", "name is missing", "is no time", "is no throughput", "twice"});
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace model = deft::model;
  const auto costs = model::parse_link_costs({reinterpret_cast<const char*>(data), size});
  if (!costs) {
    outcomes().refused(costs.error());
    return 0;
  }
  outcomes().taken();
  if (costs->size() > model::kMaxProfileLinks) die("more links than there may be");
  for (const auto& link : *costs) {
    if (!(link.latency_us >= 0 && link.latency_us <= model::kMaxProfileUs)) die("an impossible latency");
    if (!(link.bytes_per_us > 0 && link.bytes_per_us <= model::kMaxBytesPerUs)) die("an impossible throughput");
    if (model::find_cost(*costs, link.name) != &link) die("a link is not found by its name");
  }
  return 0;
}
