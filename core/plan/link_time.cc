#include "core/plan/link_time.h"

#include <algorithm>

#include "core/model/buckets.h"
#include "core/model/part_time.h"

namespace deft::plan {
std::size_t LinkTime::idle() const {
  return static_cast<std::size_t>(std::min_element(free_us_.begin(), free_us_.end()) - free_us_.begin());
}

std::size_t LinkTime::best(std::size_t idle, const Sending& sending) const {
  const auto finish = [&](std::size_t link, std::uint64_t bytes) {
    return std::max(free_us_[link], sending.ready_us) + problem_.cost(link, sending.bucket).us(bytes);
  };
  std::size_t best = idle;
  double best_us = finish(idle, piece(idle, sending, std::numeric_limits<double>::infinity()));
  for (std::size_t l = 0; l < free_us_.size(); ++l) {
    const double us = finish(l, sending.rest);
    if (us < best_us) best = l, best_us = us;
  }
  return best;
}

double LinkTime::least_us(std::size_t link, model::BucketIndex bucket) const {
  const double least_us = model::least_part_us(problem_.link_model(link), problem_.compute_us());
  return std::max(least_us, problem_.cost(link, bucket).us(model::kPartAlignBytes));
}

// How much goes to `link` at once.
std::uint64_t LinkTime::piece(std::size_t link, const Sending& sending, double most_us) const {
  const auto& cost = problem_.cost(link, sending.bucket);
  const double us = std::min(std::max(part_us_, least_us(link, sending.bucket)), most_us) - cost.fixed_us;
  const double whole_us = cost.us_per_byte * static_cast<double>(sending.rest);
  if (whole_us <= us * 1.25 && cost.fixed_us + whole_us <= most_us) return sending.rest;  // leave no sliver
  const auto units = static_cast<std::uint64_t>(us / cost.us_per_byte / model::kPartAlignBytes);
  return std::min(sending.rest, std::max<std::uint64_t>(units, 1) * model::kPartAlignBytes);
}

void LinkTime::place(Sending& sending, std::size_t link, double most_us) {
  const std::uint64_t bytes = piece(link, sending, most_us);
  const auto& cost = problem_.cost(link, sending.bucket);
  const double start = std::max(free_us_[link], sending.ready_us);
  auto& list = placed_[link];
  const bool joins =
      !list.empty() && list.back().generation == sending.generation && list.back().bucket == sending.bucket;
  const double us = joins ? static_cast<double>(bytes) * cost.us_per_byte : cost.us(bytes);
  if (joins)
    list.back().bytes += bytes;
  else
    list.push_back({sending.generation, sending.bucket, bytes, start});
  free_us_[link] = start + us;
  sending.finish_us = std::max(sending.finish_us, free_us_[link]);
  sending.rest -= bytes;
}

}  // namespace deft::plan
