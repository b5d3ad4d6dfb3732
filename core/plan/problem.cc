#include "core/plan/problem.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace deft::plan {

Problem::Problem(const model::Profile& profile, const std::vector<model::CodecIndex>& codecs) {
  const std::size_t count = profile.buckets.size();
  buckets_.resize(count);
  costs_.assign(profile.links.size(), std::vector<model::PartCost>(count));
  for (std::size_t link = 0; link < profile.links.size(); ++link) links_.push_back(profile.link_model(link));
  forward_us_ = profile.forward_us();
  double forward_end = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& from = profile.buckets[i];
    ProblemBucket& to = buckets_[count - 1 - i];
    to = {from.bytes, from.forward_us, from.backward_us, forward_end, 0};
    forward_end += from.forward_us;
    const model::CodecIndex codec = codecs.empty() ? model::CodecIndex{0} : codecs[count - 1 - i];
    for (std::size_t link = 0; link < profile.links.size(); ++link)
      costs_[link][count - 1 - i] = profile.cost(i, link, codec);
  }
  double backward_end = forward_us_;
  for (auto& bucket : buckets_) bucket.ready_us = backward_end += bucket.backward_us;
  compute_us_ = backward_end;
}

double Problem::shared_us(std::size_t bucket) const {
  double speed = 0;
  for (const auto& costs : costs_) speed += 1 / std::max(costs[bucket].us(buckets_[bucket].bytes), 1e-9);
  return 1 / speed;
}

Problem Problem::scaled(double compute, double communication) const {
  Problem out = *this;
  for (auto& bucket : out.buckets_) {
    bucket.forward_us *= compute;
    bucket.backward_us *= compute;
    bucket.forward_start_us *= compute;
    bucket.ready_us *= compute;
  }
  out.compute_us_ *= compute;
  out.forward_us_ *= compute;
  for (auto& link : out.costs_)
    for (auto& cost : link) cost = {cost.fixed_us * communication, cost.us_per_byte * communication};
  for (auto& link : out.links_) link.latency_us *= communication, link.bytes_per_us /= communication;
  return out;
}

Problem Problem::merged(const std::vector<std::size_t>& firsts) const {
  Problem out = *this;
  out.buckets_.clear();
  out.costs_.assign(links(), {});
  for (std::size_t group = 0; group < firsts.size(); ++group) {
    const std::size_t first = firsts[group], end = group + 1 < firsts.size() ? firsts[group + 1] : buckets();
    ProblemBucket whole = buckets_[end - 1];  // it is ready last, and forward needs it first
    whole.bytes = 0, whole.forward_us = 0, whole.backward_us = 0;
    for (std::size_t b = first; b < end; ++b) {
      whole.bytes += buckets_[b].bytes;
      whole.forward_us += buckets_[b].forward_us;
      whole.backward_us += buckets_[b].backward_us;
    }
    out.buckets_.push_back(whole);
    for (std::size_t l = 0; l < links(); ++l) {
      double us = 0, fixed_us = 0;
      for (std::size_t b = first; b < end; ++b) {
        us += costs_[l][b].us(buckets_[b].bytes);
        fixed_us = std::max(fixed_us, costs_[l][b].fixed_us);
      }
      out.costs_[l].push_back({fixed_us, (us - fixed_us) / static_cast<double>(whole.bytes)});
    }
  }
  return out;
}

// Any prices of the links' time that sum to 1 give a bound: each bucket goes to the link on which it costs least. Prices of overloaded
// links rise until the bound is close to the optimum.
double Problem::generation_bound_us() const {
  constexpr int kRounds = 60;
  std::vector<double> price(links());
  double sum = 0;
  for (std::size_t l = 0; l < links(); ++l) {
    double total = 0;
    for (std::size_t b = 0; b < buckets(); ++b) total += costs_[l][b].us(buckets_[b].bytes);
    sum += price[l] = 1 / std::max(total, 1e-9);
  }
  for (auto& p : price) p /= sum;
  double best = 0;
  std::vector<double> load(links());
  for (int round = 0; round < kRounds; ++round) {
    std::fill(load.begin(), load.end(), 0);
    double bound = 0;
    for (std::size_t b = 0; b < buckets(); ++b) {
      std::size_t cheapest = 0;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t l = 0; l < links(); ++l) {
        const double us = costs_[l][b].us(buckets_[b].bytes);
        if (price[l] * us < least) least = price[l] * us, cheapest = l;
      }
      bound += least;
      load[cheapest] += costs_[cheapest][b].us(buckets_[b].bytes);
    }
    best = std::max(best, bound);
    const double most = *std::max_element(load.begin(), load.end());
    if (most <= 0) break;
    double total = 0;
    for (std::size_t l = 0; l < links(); ++l)
      total += price[l] *= std::exp(0.3 / std::sqrt(round + 1.0) * load[l] / most);
    for (auto& p : price) p /= total;
  }
  return best;
}

void ComputeTimeline::run_step(const double* arrival_us, double* ready_us) {
  for (std::size_t b = problem_.buckets(); b-- > 0;) {
    if (arrival_us != nullptr) now_us_ = std::max(now_us_, arrival_us[b]);
    now_us_ += problem_.bucket(b).forward_us;
  }
  for (std::size_t b = 0; b < problem_.buckets(); ++b) ready_us[b] = now_us_ += problem_.bucket(b).backward_us;
}

}  // namespace deft::plan
