#include "core/papers/knapsack_solver.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace deft::papers {
namespace {

constexpr double kSlack = 1e-9;         // of a capacity, for sums that differ in their last digits
constexpr std::size_t kDeepest = 4096;  // items: the search goes this deep and no deeper
constexpr double kNoBound = std::numeric_limits<double>::infinity();

// What a sequence of items can be worth at most from each one on: all of them together, or a link's time full of the
// densest.
class SuffixBounds {
 public:
  template <typename ItemAt>
  SuffixBounds(std::size_t count, std::size_t links, const ItemAt& item_at)
      : value_(count + 1, 0), rest_release_(count + 1, kNoBound), density_(links, std::vector<double>(count + 1, 0)) {
    for (std::size_t i = count; i-- > 0;) {
      const KnapsackItem& item = item_at(i);
      value_[i] = value_[i + 1] + item.value;
      rest_release_[i] = std::min(rest_release_[i + 1], item.release_us);
      for (std::size_t l = 0; l < links; ++l) {
        const double cost = item.cost_us[l];
        density_[l][i] = std::max(density_[l][i + 1], cost > 0 ? item.value / cost : kNoBound);
      }
    }
  }
  [[nodiscard]] double value(std::size_t first) const { return value_[first]; }
  [[nodiscard]] double least_release_us(std::size_t first) const { return rest_release_[first]; }
  [[nodiscard]] double fill(std::size_t first, std::size_t link, double room_us) const {
    if (room_us < 0) return 0;
    const double density = density_[link][first];
    return density == kNoBound ? kNoBound : room_us * density;
  }

 private:
  std::vector<double> value_;
  std::vector<double> rest_release_;          // the smallest of the items from one on
  std::vector<std::vector<double>> density_;  // [link][first] the most value a microsecond
};

// Depth-first over the items from the last to be ready to the first. In that order the items of one link end with the
// deadline when packed tight, so item j fits behind those chosen before it iff their sum plus its own cost is at most
// deadline - release: one number a link is the whole state.
class BranchAndBound {
 public:
  BranchAndBound(std::span<const KnapsackItem> items, std::span<const double> deadline_us, std::uint64_t effort,
                 double accepted_gap)
      : items_(items),
        deadline_(deadline_us),
        effort_(effort),
        accepted_(1 + accepted_gap),
        order_(items.size()),
        used_(deadline_us.size()),
        path_(items.size(), Packing::kNone) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](std::size_t a, std::size_t b) {
      if (items[a].release_us != items[b].release_us) return items[a].release_us > items[b].release_us;
      return items[a].value > items[b].value;
    });
    bounds_.emplace(
        items.size(), deadline_us.size(), [&](std::size_t d) -> auto& { return item(d); });
    best_.link = path_;
  }

  Packing solve() {
    const double root = bound(0);
    visit(0);
    best_.bound = stopped_ ? root : std::min(root, best_.value * accepted_);
    return std::move(best_);
  }

 private:
  [[nodiscard]] const KnapsackItem& item(std::size_t depth) const { return items_[order_[depth]]; }
  [[nodiscard]] double bound(std::size_t depth) const;
  [[nodiscard]] bool fits(std::size_t depth, std::size_t link) const;
  void visit(std::size_t depth);
  void visit_with(std::size_t depth, std::size_t link);

  std::span<const KnapsackItem> items_;
  std::span<const double> deadline_;
  std::uint64_t effort_;
  double accepted_;
  std::vector<std::size_t> order_;
  std::vector<double> used_;            // of each link
  std::vector<int> path_;               // the links chosen so far, by item
  std::optional<SuffixBounds> bounds_;  // of the items by depth
  double value_ = 0;
  std::uint64_t nodes_ = 0;
  bool stopped_ = false;
  Packing best_;
};

// Most that the items from `depth` on can still add: all of them, or every link full of the densest.
double BranchAndBound::bound(std::size_t depth) const {
  if (depth == items_.size()) return 0;
  double fill = 0;
  for (std::size_t l = 0; l < deadline_.size(); ++l) {
    const double room = deadline_[l] - bounds_->least_release_us(depth) - used_[l];
    fill += bounds_->fill(depth, l, room);
  }
  return std::min(bounds_->value(depth), fill * (1 + kSlack));
}

bool BranchAndBound::fits(std::size_t depth, std::size_t link) const {
  const KnapsackItem& next = item(depth);
  return used_[link] + next.cost_us[link] <= (deadline_[link] - next.release_us) * (1 + kSlack);
}

void BranchAndBound::visit_with(std::size_t depth, std::size_t link) {
  const double used = used_[link];
  const double value = value_;
  used_[link] += item(depth).cost_us[link];
  value_ += item(depth).value;
  path_[order_[depth]] = static_cast<int>(link);
  visit(depth + 1);
  path_[order_[depth]] = Packing::kNone;
  used_[link] = used;
  value_ = value;
}

void BranchAndBound::visit(std::size_t depth) {
  if (value_ > best_.value) best_.value = value_, best_.link = path_;
  if (depth == items_.size() || value_ + bound(depth) <= best_.value * accepted_ + kSlack) return;
  if (++nodes_ > effort_ || depth == kDeepest) stopped_ = true;
  if (stopped_) return;
  std::vector<std::pair<double, std::size_t>> options;  // the emptiest link first
  for (std::size_t l = 0; l < deadline_.size(); ++l)
    if (fits(depth, l)) options.emplace_back((used_[l] + item(depth).cost_us[l]) / deadline_[l], l);
  std::sort(options.begin(), options.end());
  for (const auto& [fill, link] : options) {
    visit_with(depth, link);
    if (stopped_) return;
  }
  visit(depth + 1);
}

void add(Packing& packing, std::size_t item, std::size_t link, double value) {
  packing.link[item] = static_cast<int>(link);
  packing.value += value;
}

}  // namespace

bool Packing::all() const {
  return std::none_of(link.begin(), link.end(), [](int l) { return l == kNone; });
}

Packing exact_knapsack(std::span<const KnapsackItem> items, std::span<const double> deadline_us, std::uint64_t effort,
                       double accepted_gap) {
  return BranchAndBound(items, deadline_us, effort, accepted_gap).solve();
}

Packing greedy_knapsack(std::span<const KnapsackItem> items, std::span<const double> capacity_us) {
  Packing packing;
  packing.link.assign(items.size(), Packing::kNone);
  std::vector<std::size_t> links(capacity_us.size());
  std::iota(links.begin(), links.end(), std::size_t{0});
  // A capacity counts in what it holds: the slower link of two with the same time is the smaller knapsack.
  std::vector<double> holds(links.size());
  for (std::size_t l = 0; l < links.size(); ++l) {
    double cost = 0;
    for (const auto& item : items) cost += item.cost_us[l];
    holds[l] = capacity_us[l] / std::max(cost, kSlack);
  }
  std::stable_sort(links.begin(), links.end(), [&](std::size_t a, std::size_t b) { return holds[a] < holds[b]; });
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return items[a].value > items[b].value; });
  std::vector<double> left(capacity_us.begin(), capacity_us.end());
  for (const std::size_t link : links)
    for (const std::size_t i : order) {
      if (packing.link[i] != Packing::kNone || items[i].cost_us[link] > left[link]) continue;
      left[link] -= items[i].cost_us[link];
      add(packing, i, link, items[i].value);
    }
  for (const auto& item : items) packing.bound += item.value;
  return packing;
}

Packing recursive_knapsack(std::span<const KnapsackItem> items, std::span<const double> backward_us,
                           std::vector<double> capacity_us, const Packer& pack) {
  Packing best;
  best.link.assign(items.size(), Packing::kNone);
  const SuffixBounds bounds(
      items.size(), capacity_us.size(), [&](std::size_t i) -> auto& { return items[i]; });
  // What all from `first` on can be worth. It only falls as `first` goes on.
  const auto bound = [&](std::size_t first) {
    double fill = 0;
    for (std::size_t l = 0; l < capacity_us.size(); ++l) fill += bounds.fill(first, l, capacity_us[l]);
    return std::min(bounds.value(first), fill) * (1 + 2 * kSlack);
  };
  for (std::size_t first = 0; first < items.size(); ++first) {
    if (first > 0)
      for (auto& capacity : capacity_us) capacity -= backward_us[first];
    if (std::all_of(capacity_us.begin(), capacity_us.end(), [](double c) { return c <= 0; })) break;
    if (bound(first) <= best.value) break;
    Packing here = pack(items.subspan(first), capacity_us);
    if (here.value <= best.value) continue;
    best.value = here.value;
    std::fill(best.link.begin(), best.link.end(), Packing::kNone);
    std::copy(here.link.begin(), here.link.end(), best.link.begin() + static_cast<std::ptrdiff_t>(first));
  }
  for (const auto& item : items) best.bound += item.value;
  return best;
}

}  // namespace deft::papers
