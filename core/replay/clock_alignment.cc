#include "core/replay/clock_alignment.h"

#include <Clp_C_Interface.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace deft::replay {
namespace {

constexpr double kMostDrift = 1e-3;        // far above that of any quartz
constexpr double kUsualDrift = 2e-4;       // of two clocks in order; where answers say nothing, they count as no worse
constexpr std::size_t kMostSamples = 512;  // the quickest of as many periods
constexpr std::size_t kMostBounds = 128;   // of data: the tightest of as many periods, of each side
constexpr double kRoundingUs = 1;          // of data's bounds: times are whole microseconds
constexpr double kDriftCost =
    0.1;  // of distance, for each microsecond a second: a short trace tells nothing about drift
constexpr double kUnbounded = std::numeric_limits<double>::max();
constexpr double kUsPerSecond = 1e6;  // the drift is solved in microseconds a second, so that numbers are of one size

// Relative to the origin, and to the first guess of the offset: offset + drift * at_s is at least, or at most, this.
struct Row {
  double at_s = 0;
  double offset_us = 0;
  bool is_least = false;
};

TimeUs round_trip(const ClockSample& sample) { return sample.answered_us - sample.asked_us; }

bool is_sane(const ClockSample& sample) { return sample.asked_us >= 0 && round_trip(sample) >= 0; }

// The quickest sample of each of kMostSamples periods: slow ones bound nothing that quick ones do not.
std::vector<ClockSample> quickest(std::span<const ClockSample> samples) {
  std::vector<ClockSample> sane;
  std::ranges::copy_if(samples, std::back_inserter(sane), is_sane);
  std::ranges::sort(sane, {}, &ClockSample::asked_us);
  if (sane.size() <= kMostSamples) return sane;
  std::vector<ClockSample> chosen;
  for (std::size_t i = 0; i < kMostSamples; ++i) {
    const auto begin = sane.begin() + static_cast<std::ptrdiff_t>(i * sane.size() / kMostSamples);
    const auto end = sane.begin() + static_cast<std::ptrdiff_t>((i + 1) * sane.size() / kMostSamples);
    chosen.push_back(*std::min_element(
        begin, end, [](const ClockSample& a, const ClockSample& b) { return round_trip(a) < round_trip(b); }));
  }
  return chosen;
}

// Columns: the offset's correction, the drift forward and backward, the distance from all bounds.
class Line {
 public:
  explicit Line(std::span<const Row> bounds);

  struct Solution {
    double correction_us = 0, drift_us_per_s = 0;

    [[nodiscard]] double at(double time_s) const { return correction_us + drift_us_per_s * time_s; }
  };
  // The line with the largest distance from all bounds, at the least drift that serves it. Nothing if no line obeys all bounds.
  std::optional<Solution> middle() { return maximise({0, -kDriftCost, -kDriftCost, 1}); }
  // How far a line that obeys all bounds, and drifts by no more than this, may be away from `line` at this time. Nothing if the solver
  // fails.
  std::optional<double> distance(const Solution& line, double time_s, double most_drift_us_per_s);

 private:
  using Columns = std::array<double, 4>;
  std::optional<Solution> maximise(const Columns& weights);

  struct Deleted {
    void operator()(Clp_Simplex* model) const { Clp_deleteModel(model); }
  };
  std::unique_ptr<Clp_Simplex, Deleted> model_{Clp_newModel()};
};

Line::Line(std::span<const Row> bounds) {
  const std::size_t rows = bounds.size();
  std::vector<int> begins = {0, static_cast<int>(rows), static_cast<int>(2 * rows), static_cast<int>(3 * rows),
                             static_cast<int>(4 * rows)};
  std::vector<int> index;
  std::vector<double> value, low(rows, -kUnbounded), high(rows, kUnbounded);
  for (std::size_t column = 0; column < 4; ++column)
    for (std::size_t i = 0; i < rows; ++i) {
      const std::array<double, 4> row = {1, bounds[i].at_s, -bounds[i].at_s, bounds[i].is_least ? -1.0 : 1.0};
      index.push_back(static_cast<int>(i));
      value.push_back(row[column]);
    }
  for (std::size_t i = 0; i < rows; ++i) (bounds[i].is_least ? low : high)[i] = bounds[i].offset_us;
  const std::array<double, 4> column_low = {-kUnbounded, 0, 0, 0};
  const std::array<double, 4> column_high = {kUnbounded, kMostDrift * kUsPerSecond, kMostDrift * kUsPerSecond,
                                             kUnbounded};
  const std::array<double, 4> objective = {0, 0, 0, 1};
  Clp_setLogLevel(model_.get(), 0);
  Clp_loadProblem(model_.get(), 4, static_cast<int>(rows), begins.data(), index.data(), value.data(), column_low.data(),
                  column_high.data(), objective.data(), low.data(), high.data());
  Clp_setOptimizationDirection(model_.get(), -1);
}

std::optional<double> Line::distance(const Solution& line, double time_s, double most_drift_us_per_s) {
  const Columns most = {kUnbounded, most_drift_us_per_s, most_drift_us_per_s, kUnbounded};
  Clp_chgColumnUpper(model_.get(), most.data());
  const auto above = maximise({1, time_s, -time_s, 0}), below = maximise({-1, -time_s, time_s, 0});
  if (!above || !below) return std::nullopt;
  return std::max(above->at(time_s) - line.at(time_s), line.at(time_s) - below->at(time_s));
}

std::optional<Line::Solution> Line::maximise(const Columns& weights) {
  Clp_chgObjCoefficients(model_.get(), weights.data());
  Clp_primal(model_.get(), 0);
  if (Clp_status(model_.get()) != 0) return std::nullopt;
  const double* const columns = Clp_primalColumnSolution(model_.get());
  return Solution{columns[0], columns[1] - columns[2]};
}

Row row_of(const ClockBound& bound, TimeUs origin_us, TimeUs offset_us) {
  return {static_cast<double>(bound.node_us - origin_us) / kUsPerSecond,
          static_cast<double>(bound.leader_us - bound.node_us - offset_us), bound.is_least};
}

std::vector<Row> rows_of(std::span<const ClockSample> samples, TimeUs origin_us, TimeUs offset_us) {
  std::vector<Row> rows;
  for (const ClockSample& sample : samples)
    for (const bool is_least : {true, false})
      rows.push_back(
          row_of({is_least ? sample.answered_us : sample.asked_us, sample.leader_us, is_least}, origin_us, offset_us));
  return rows;
}

// The bounds that are nearest to the line, on either side of it: the nearest of each period.
std::vector<Row> tightest(std::span<const ClockBound> bounds, const ClockMap& map, const Line::Solution& line) {
  if (bounds.empty()) return {};
  const auto [first, last] = std::ranges::minmax_element(bounds, {}, &ClockBound::node_us);
  const TimeUs begin_us = first->node_us, period_us = (last->node_us - begin_us) / TimeUs{kMostBounds} + 1;
  std::array<std::array<std::optional<Row>, kMostBounds>, 2> nearest;
  const auto distance = [&](const Row& row) {
    return row.is_least ? line.at(row.at_s) - row.offset_us : row.offset_us - line.at(row.at_s);
  };
  for (const ClockBound& bound : bounds) {
    Row row = row_of(bound, map.origin_us, map.offset_us);
    row.offset_us += row.is_least ? -kRoundingUs : kRoundingUs;
    auto& best = nearest[row.is_least ? 0 : 1][static_cast<std::size_t>((bound.node_us - begin_us) / period_us)];
    if (!best || distance(row) < distance(*best)) best = row;
  }
  std::vector<Row> rows;
  for (const auto& side : nearest)
    for (const auto& row : side)
      if (row) rows.push_back(*row);
  return rows;
}

// At the records' ends, because there the lines that obey all bounds are farthest from each other.
double error_of(Line& line, const Line::Solution& middle, const ClockSample& best, TimeUs origin_us,
                const Interval& records) {
  const double most_drift = std::max(kUsualDrift * kUsPerSecond, std::abs(middle.drift_us_per_s));
  double error_us = 0;
  for (const TimeUs at_us : {records.begin_us, records.end_us}) {
    const double at_s = records.is_empty() ? 0 : static_cast<double>(at_us - origin_us) / kUsPerSecond;
    const double unsolved_us = static_cast<double>(round_trip(best)) / 2 + most_drift * std::abs(at_s);
    error_us = std::max(error_us, line.distance(middle, at_s, most_drift).value_or(unsolved_us));
  }
  return error_us;
}

// If samples contradict each other, the slowest one goes first, because it says least.
void drop_slowest(std::vector<ClockSample>& samples) {
  samples.erase(std::ranges::max_element(samples, {}, round_trip));
}

void set_line(ClockMap& map, const Line::Solution& line, double error_us) {
  map.correction_us = line.correction_us;
  map.drift = line.drift_us_per_s / kUsPerSecond;
  map.error_us = error_us;
}

}  // namespace

TimeUs ClockMap::to_leader(TimeUs node_us) const {
  const double since_us = static_cast<double>(node_us - origin_us);
  return node_us + offset_us + std::llround(correction_us + drift * since_us);
}

Result<ClockMap> align(std::span<const ClockSample> all, const Interval& records, std::span<const ClockBound> bounds) {
  std::vector<ClockSample> samples = quickest(all);
  const std::size_t usable = samples.size();
  while (!samples.empty()) {
    const ClockSample best = *std::ranges::min_element(samples, {}, round_trip);
    ClockMap map;
    map.origin_us = best.asked_us + round_trip(best) / 2;
    map.offset_us = best.leader_us - map.origin_us;
    map.samples = samples.size();
    map.contradicting = usable - samples.size();
    auto rows = rows_of(samples, map.origin_us, map.offset_us);
    Line line(rows);
    const auto middle = line.middle();
    if (!middle) {
      drop_slowest(samples);
      continue;
    }
    set_line(map, *middle, error_of(line, *middle, best, map.origin_us, records));
    const auto more = tightest(bounds, map, *middle);
    if (more.empty()) return map;
    rows.insert(rows.end(), more.begin(), more.end());
    Line closer(rows);
    const auto closer_middle = closer.middle();
    if (!closer_middle) return map;
    const double error_us = error_of(closer, *closer_middle, best, map.origin_us, records);
    if (error_us < map.error_us) set_line(map, *closer_middle, error_us), map.bounds = more.size();
    return map;
  }
  return fail(ErrorKind::kInvalid, "there is no sample of the leader's clock",
              "trace for longer than a heartbeat (a twelfth of DEFT_TIMEOUT)");
}

}  // namespace deft::replay
