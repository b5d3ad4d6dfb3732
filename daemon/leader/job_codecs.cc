#include "daemon/leader/job_codecs.h"

#include "core/compress/codec_costs.h"

namespace deft::daemon {

const std::vector<model::CodecCost>& JobCodecs::priced(const std::vector<std::string>& links) {
  if (slowdowns_) return prices_;
  std::vector<double> stages_us_per_byte;
  for (const auto& codec : settings_.codecs) {
    guesses_.emplace_back();
    stages_us_per_byte.push_back(0);
    if (codec == nullptr) continue;
    const model::CodecCost alone = compress::measure_cost(*codec);
    guesses_.back() = compress::price_between_nodes(*codec, alone, nodes_, links);
    stages_us_per_byte.back() = compress::stages_us_per_byte(*codec, alone, nodes_);
  }
  prices_ = guesses_;
  slowdowns_.emplace(nodes_, std::move(stages_us_per_byte));
  return prices_;
}

bool JobCodecs::take(std::size_t node, std::span<const wire::CodecTime> times) {
  if (!slowdowns_) return false;
  slowdowns_->take(node, times);
  bool has_changed = false;
  for (std::size_t codec = 1; codec < guesses_.size(); ++codec) {
    model::CodecCost price = guesses_[codec];
    const double slower = slowdowns_->of(codec).times;
    price.encode_us_per_byte *= slower;
    price.decode_us_per_byte *= slower;
    has_changed |= price != prices_[codec];
    prices_[codec] = std::move(price);
  }
  return has_changed;
}

nlohmann::json JobCodecs::status() const {
  constexpr double kMegabyte = 1e6;
  auto list = nlohmann::json::array();
  for (std::size_t codec = 1; codec < prices_.size(); ++codec) {
    const CodecSlowdowns::Slowest slowest = slowdowns_->of(codec);
    list.push_back({{"codec", prices_[codec].name},
                    {"encode_us_per_mb", prices_[codec].encode_us_per_byte * kMegabyte},
                    {"decode_us_per_mb", prices_[codec].decode_us_per_byte * kMegabyte},
                    {"slowdown", slowest.times},
                    {"measured", slowest.is_measured}});
    if (slowest.node) list.back()["node"] = *slowest.node;
  }
  return list;
}

}  // namespace deft::daemon
