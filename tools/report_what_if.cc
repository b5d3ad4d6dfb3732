#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/policy_traits.h"
#include "core/replay/replay.h"
#include "tools/report_data.h"

namespace deft::tools {
namespace {

using nlohmann::json;

constexpr std::array kLinkSpeeds = {0.25, 0.5, 1.0, 2.0, 4.0, 8.0};
constexpr std::array kComputeSpeeds = {0.5, 1.0, 2.0, 4.0};
constexpr std::array kNodeTimes = {1U, 2U, 4U, 8U, 16U};  // the traced ones

struct Point {
  std::size_t policy = 0, nodes = 0, compute = 0, links = 0;
  double distance = 0;  // from the traced job
};

struct Axes {
  std::vector<std::string> policies;  // the traced one first
  std::vector<std::uint32_t> nodes;

  [[nodiscard]] std::size_t at(const Point& point) const {
    return ((point.policy * nodes.size() + point.nodes) * kComputeSpeeds.size() + point.compute) * kLinkSpeeds.size() +
           point.links;
  }
  [[nodiscard]] std::vector<Point> points() const;
};

std::vector<Point> Axes::points() const {
  std::vector<Point> points;
  for (std::size_t p = 0; p < policies.size(); ++p)
    for (std::size_t n = 0; n < nodes.size(); ++n)
      for (std::size_t c = 0; c < kComputeSpeeds.size(); ++c)
        for (std::size_t l = 0; l < kLinkSpeeds.size(); ++l)
          points.push_back({p, n, c, l,
                            (p > 0 ? 1 : 0) + static_cast<double>(n) + std::abs(std::log2(kComputeSpeeds[c])) +
                                std::abs(std::log2(kLinkSpeeds[l]))});
  std::ranges::stable_sort(points, {}, &Point::distance);
  return points;
}

Axes axes_of(const replay::MeasuredJob& measured) {
  Axes axes;
  axes.policies.push_back(replay::policy_of(measured.options));
  for (const auto& traits : kPolicyTraits)
    if (!traits.simulator_only && traits.name != axes.policies.front()) axes.policies.emplace_back(traits.name);
  const std::uint32_t nodes = measured.node_count;
  for (const auto times : kNodeTimes)
    if (nodes > 1 || times == 1) axes.nodes.push_back(nodes * times);  // the links of one node are not known
  return axes;
}

Result<double> replayed_us(const replay::MeasuredJob& measured, const Axes& axes, const Point& point) {
  replay::WhatIf what_if{.policy = axes.policies[point.policy], .compute_speed = kComputeSpeeds[point.compute]};
  if (measured.node_count > 1) what_if.nodes = axes.nodes[point.nodes];
  for (const auto& link : measured.profile.links) what_if.link_speed[link.name] = kLinkSpeeds[point.links];
  const auto prediction = replay::replay(measured, what_if);
  if (!prediction) return tl::unexpected(prediction.error());
  return prediction->step_us_p50;
}

}  // namespace

json what_if_grid(const replay::MeasuredJob& measured, TimeUs budget_us) {
  const Axes axes = axes_of(measured);
  const std::vector<Point> points = axes.points();
  std::vector<double> steps_us(points.size(), 0);
  std::mutex mutex;
  std::map<std::string, std::map<std::string, std::string>>
      cannot;  // by policy and number of nodes: why that cannot be
  std::atomic<std::size_t> next = 0;
  const TimeUs until_us = MonotonicClock::now() + budget_us;
  const auto work = [&] {
    for (std::size_t i = next++; i < points.size(); i = next++) {
      if (i > 0 && MonotonicClock::now() > until_us) return;
      if (const auto us = replayed_us(measured, axes, points[i]); us) {
        steps_us[axes.at(points[i])] = *us;
      } else {
        const std::lock_guard lock(mutex);
        cannot[axes.policies[points[i].policy]].emplace(std::to_string(axes.nodes[points[i].nodes]), us.error().what);
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency(), 1U, 8U); ++i) threads.emplace_back(work);
  }
  json values = json::array();
  for (const double us : steps_us) values.push_back(us > 0 ? json(std::round(us)) : json());
  return {{"policies", axes.policies}, {"nodes", axes.nodes}, {"compute", kComputeSpeeds},
          {"links", kLinkSpeeds},      {"us", values},        {"cannot", cannot}};
}

}  // namespace deft::tools
