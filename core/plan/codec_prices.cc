#include "core/plan/codec_prices.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace deft::plan {

CodecPrices::CodecPrices(const model::Profile& profile, const PlanLimits& limits, std::vector<double> rates)
    : profile_(profile),
      last_(std::min(limits.codecs.last, profile.codecs.size() - 1)),
      jitter_margin_(limits.jitter_margin),
      rates_(std::move(rates)) {
  for (const auto& bucket : profile.buckets) bytes_ += static_cast<double>(bucket.bytes);
}

// Of the profile's error an encoding leaves out so much: weighted by what may be encoded of all bytes.
double CodecPrices::error_of(model::BucketIndex bucket, model::CodecIndex codec) const {
  const auto& of = bucket_of(bucket);
  return static_cast<double>(of.bytes) * of.coded_share().share * profile_.codecs[codec].error;
}

double CodecPrices::error_of(const Codecs& codecs) const {
  double error = 0;
  for (model::BucketIndex b = 0; b < codecs.size(); ++b) error += error_of(b, codecs[b]);
  return error / bytes_;
}

CodecPrices::Codecs CodecPrices::last_codecs() const {
  Codecs codecs(profile_.buckets.size(), static_cast<model::CodecIndex>(last_));
  for (model::BucketIndex b = 0; b < codecs.size(); ++b)
    if (bucket_of(b).coded_share().share == 0) codecs[b] = 0;
  return codecs;
}

// time_of(bucket of the profile, codec) gives the microseconds of one generation.
template <typename TimeOf>
CodecPrices::Options CodecPrices::options_by(const TimeOf& time_of) const {
  Options options(profile_.buckets.size());
  for (model::BucketIndex b = 0; b < options.size(); ++b) {
    const std::size_t of_profile = options.size() - 1 - b;
    const double rate = rates_.empty() ? 1 : rates_[b];
    for (std::size_t i = 0; i <= last_; ++i) {
      const auto codec = static_cast<model::CodecIndex>(i);
      options[b].push_back({rate * time_of(of_profile, codec), error_of(b, codec)});
      if (bucket_of(b).coded_share().share == 0) break;  // other codecs are the same
    }
  }
  return options;
}

CodecPrices::Options CodecPrices::options() const {
  return options_by([this](std::size_t bucket, model::CodecIndex codec) {
    double speed = 0;
    for (std::size_t link = 0; link < profile_.links.size(); ++link) {
      const double us = profile_.cost(bucket, link, codec).us(profile_.buckets[bucket].bytes);
      speed += 1 / std::max(us * (1 + jitter_margin_), 1e-9);
    }
    return 1 / speed;
  });
}

// Any prices of the links' time that sum to 1 give a bound: a bucket goes to the link on which it costs least (Problem::generation_bound_us).
double CodecPrices::error_bound(double step_us) const {
  std::vector<double> price(profile_.links.size());
  double sum = 0;
  for (std::size_t link = 0; link < price.size(); ++link) {
    double total_us = 0;
    for (std::size_t b = 0; b < profile_.buckets.size(); ++b) total_us += profile_.comm_us(b, link);
    sum += price[link] = 1 / std::max(total_us, 1e-9);
  }
  const CodecChoice choice(options_by([&](std::size_t bucket, model::CodecIndex codec) {
    double least_us = std::numeric_limits<double>::infinity();
    for (std::size_t link = 0; link < price.size(); ++link)
      least_us =
          std::min(least_us, price[link] / sum * profile_.cost(bucket, link, codec).us(profile_.buckets[bucket].bytes));
    return least_us;
  }));
  return choice.error_bound(step_us) / bytes_;
}

}  // namespace deft::plan
