// Feeds the profile reader with whatever libFuzzer makes up. A text that is accepted must survive being written and read
// again, with numbers that the planner can work with.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/model/profile.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto profile = deft::model::parse_profile({reinterpret_cast<const char*>(data), size});
  if (!profile) {
    require(!profile.error().what.empty());
    return 0;
  }
  require(profile->compute_us() > 0 && std::isfinite(profile->compute_us()));
  for (std::size_t link = 0; link < profile->links.size(); ++link) {
    require(profile->link_model(link).bytes_per_us > 0);
    for (std::size_t bucket = 0; bucket < profile->buckets.size(); ++bucket)
      require(std::isfinite(profile->comm_us(bucket, link)) && profile->comm_us(bucket, link) >= 0);
  }
  const auto again = deft::model::parse_profile(deft::model::to_json(*profile));
  require(again.has_value());
  require(deft::model::to_json(*again) == deft::model::to_json(*profile));
  return 0;
}
