#include "daemon/channel/factors.h"

#include <iterator>

#include "core/base/mix64.h"

namespace deft::daemon {

CodedMatrix FactorTable::turn_of(std::size_t first, const compress::MatrixShape& shape, std::uint64_t slot,
                                 std::uint64_t generation) {
  const Place place{slot, first};
  const auto known = known_.find(place);
  if (known == known_.end() || known->second.shape != shape) {
    forget(place, shape.elements());
    auto factors = std::make_shared<Factors>();
    factors->seed = mix64(key_ ^ mix64(first ^ mix64(generation)));
    known_[place] = {shape, std::move(factors), 0};
  }
  CodedMatrix& matrix = known_[place];
  CodedMatrix taken = matrix;
  ++matrix.turn;
  return taken;
}

void FactorTable::forget(const Place& place, std::size_t elements) {
  const auto [slot, first] = place;
  auto it = known_.lower_bound(place);
  if (it != known_.begin()) {
    const auto before = std::prev(it);
    if (before->first.first == slot && before->first.second + before->second.shape.elements() > first) it = before;
  }
  while (it != known_.end() && it->first.first == slot && it->first.second < first + elements) it = known_.erase(it);
}

}  // namespace deft::daemon
