#include "core/replay/memory_peak.h"

#include <algorithm>
#include <numeric>

namespace deft::replay {
namespace {

using trace::MemoryPart;
using trace::MemoryTrace;

// Adds amounts up over the positions of a step.
class Reckoning {
 public:
  Reckoning(const StepMemory& memory, const MemoryWhatIf& what_if)
      : memory_(memory), what_if_(what_if), changes_(memory.after() + 2) {
    for (const MemoryTrace& amount : memory.amounts) add(amount);
    if (what_if.passes > 1) add_gradients();
  }

  std::vector<MemoryUse> uses();

 private:
  struct Dropped {  // by recomputing a range
    std::size_t range = 0;
    MemoryTrace amount;
  };

  [[nodiscard]] double scaled(const MemoryTrace& amount) const {
    const double share = what_if_.batch / what_if_.passes;
    return static_cast<double>(amount.bytes - amount.growing) + static_cast<double>(amount.growing) * share;
  }
  void add(MemoryPart part, std::size_t first, std::size_t last, double bytes) {
    if (first > last) return;
    changes_[first].of(part) += bytes;
    changes_[last + 1].of(part) -= bytes;
  }
  void add(const MemoryTrace& amount);
  void add_gradients();
  bool drop(const MemoryTrace& amount);
  [[nodiscard]] std::size_t end_of_inputs(const MemoryTrace& amount) const;
  [[nodiscard]] MemoryUse repeated(const MemoryUse& at_backward, std::size_t range) const;

  const StepMemory& memory_;
  const MemoryWhatIf& what_if_;
  std::vector<MemoryUse> changes_;  // by position
  std::vector<Dropped> dropped_;
};

void Reckoning::add(const MemoryTrace& amount) {
  const auto part = static_cast<MemoryPart>(amount.part);
  switch (part) {
    case MemoryPart::kWeights:
    case MemoryPart::kOptimizer:
    case MemoryPart::kArena:
    case MemoryPart::kTemporary: return add(part, amount.begin, amount.end, scaled(amount));
    // With several passes gradients are added up in other ones.
    case MemoryPart::kGradients:
      if (what_if_.passes > 1 && amount.end >= memory_.update()) return;
      break;
    default: break;
  }
  if (drop(amount)) return;
  const std::size_t end = end_of_inputs(amount);
  if (end > 0) add(part, amount.begin + std::size_t{1}, end - 1, scaled(amount));
}

// Gradients are added up outside the arena. In the first pass backward makes one after the other. In the last pass backward hands one after
// the other over. In the passes between them all gradients are there.
void Reckoning::add_gradients() {
  const auto all = static_cast<double>(memory_.gradient_bytes);
  add(MemoryPart::kGradients, 0, memory_.loss(), all);
  for (std::size_t layer = 0; layer < memory_.layers.size(); ++layer) {
    const auto left = static_cast<double>(memory_.layers[layer].left_bytes);
    const double most = what_if_.passes == 2 ? std::max(left, all - left) : all;
    add(MemoryPart::kGradients, memory_.backward(layer), memory_.backward(layer), most);
  }
}

// True: a recomputed range frees the amount in forward and makes it again for its backward.
bool Reckoning::drop(const MemoryTrace& amount) {
  for (std::size_t i = 0; i < what_if_.recomputed.size(); ++i) {
    const LayerRange& range = what_if_.recomputed[i];
    const bool has_input = amount.input_of != MemoryTrace::kNoLayer;
    if (amount.begin < memory_.forward(range.first) || amount.begin > memory_.forward(range.last)) continue;
    if (amount.end < memory_.backward(range.last) || amount.end > memory_.backward(range.first)) return false;
    if (has_input && amount.input_of > range.last) return false;
    const auto part = static_cast<MemoryPart>(amount.part);
    const std::size_t used = has_input ? memory_.forward(amount.input_of) : amount.begin + std::size_t{1};
    add(part, amount.begin + std::size_t{1}, std::min(used, memory_.forward(range.last)), scaled(amount));
    if (amount.end > memory_.backward(range.last))
      add(part, memory_.backward(range.last), amount.end - std::size_t{1}, scaled(amount));
    dropped_.push_back({i, amount});
    return true;
  }
  return false;
}

// The input of a recomputed range is there until its backward has ended.
std::size_t Reckoning::end_of_inputs(const MemoryTrace& amount) const {
  std::size_t end = amount.end;
  if (amount.input_of == MemoryTrace::kNoLayer) return end;
  for (const LayerRange& range : what_if_.recomputed)
    if (range.first <= amount.input_of && amount.input_of <= range.last && amount.begin < memory_.forward(range.first))
      end = std::max(end, memory_.backward(range.first) + 1);
  return end;
}

// The most that repeating the forward of a range needs, when backward has come to its last layer.
MemoryUse Reckoning::repeated(const MemoryUse& at_backward, std::size_t range_number) const {
  const LayerRange& range = what_if_.recomputed[range_number];
  const std::size_t backward = memory_.backward(range.last);
  MemoryUse base = at_backward;
  std::vector<double> temporary(range.last - range.first + 1), made(temporary.size() + 1);
  double gradient = 0;  // of the range's output
  for (const MemoryTrace& amount : memory_.amounts) {
    const bool within = amount.begin >= memory_.forward(range.first) && amount.begin <= memory_.forward(range.last);
    const bool is_temporary = amount.part == static_cast<std::uint16_t>(MemoryPart::kTemporary);
    if (is_temporary && amount.begin == backward) base.of(MemoryPart::kTemporary) -= scaled(amount);
    if (!within) continue;
    if (is_temporary) temporary[amount.begin - memory_.forward(range.first)] += scaled(amount);
    if (!is_temporary && amount.input_of == range.last + 1) gradient += scaled(amount);
  }
  for (const Dropped& dropped : dropped_) {
    if (dropped.range != range_number) continue;
    const double bytes = scaled(dropped.amount);
    if (dropped.amount.end > backward) base.of(static_cast<MemoryPart>(dropped.amount.part)) -= bytes;
    made[dropped.amount.begin - memory_.forward(range.first) + 1] += bytes;
  }
  MemoryUse most = at_backward;
  double there = 0;
  for (std::size_t i = 0; i < temporary.size(); ++i) {
    there += made[i];
    MemoryUse use = base;
    use.of(MemoryPart::kActivations) += there;
    use.of(MemoryPart::kTemporary) += temporary[i] + gradient;
    if (use.total() > most.total()) most = use;
  }
  return most;
}

std::vector<MemoryUse> Reckoning::uses() {
  std::vector<MemoryUse> uses(memory_.after() + 1);
  MemoryUse now;
  for (std::size_t position = 0; position < uses.size(); ++position) {
    for (std::size_t part = 0; part < now.bytes.size(); ++part) now.bytes[part] += changes_[position].bytes[part];
    uses[position] = now;
  }
  for (std::size_t i = 0; i < what_if_.recomputed.size(); ++i) {
    MemoryUse& use = uses[memory_.backward(what_if_.recomputed[i].last)];
    use = repeated(use, i);
  }
  return uses;
}

// The bucket that holds this byte of the arena, which begins with the last bucket of forward. Null: there is none.
model::ProfileBucket* bucket_with(std::uint64_t byte, std::vector<model::ProfileBucket>& buckets) {
  std::uint64_t end = 0;
  for (auto bucket = buckets.rbegin(); bucket != buckets.rend(); ++bucket)
    if (byte < (end += bucket->bytes)) return &*bucket;
  return nullptr;
}

}  // namespace

double MemoryUse::total() const { return std::accumulate(bytes.begin(), bytes.end(), 0.0); }

std::vector<MemoryUse> memory_uses(const StepMemory& memory, const MemoryWhatIf& what_if) {
  return Reckoning(memory, what_if).uses();
}

MemoryPeak memory_peak(const StepMemory& memory, const MemoryWhatIf& what_if) {
  const auto uses = memory_uses(memory, what_if);
  const auto most = std::ranges::max_element(uses, {}, &MemoryUse::total);
  return {*most, static_cast<std::size_t>(most - uses.begin())};
}

model::Profile with_memory(model::Profile profile, double rest_us, const StepMemory* memory,
                           const MemoryWhatIf& what_if) {
  if (what_if.is_as_traced()) return profile;
  auto& buckets = profile.buckets;
  rest_us = std::clamp(rest_us, 0.0, buckets.front().forward_us);
  buckets.front().forward_us -= rest_us;
  if (memory != nullptr)
    for (const LayerRange& range : what_if.recomputed) {
      model::ProfileBucket* const bucket = bucket_with(memory->layers[range.last].first_byte, buckets);
      if (bucket == nullptr) continue;
      for (std::size_t layer = range.first; layer <= range.last; ++layer)
        bucket->backward_us += memory->layers[layer].forward_us;
    }
  double pass_us = 0;
  for (auto& bucket : buckets)
    for (double* us : {&bucket.forward_us, &bucket.backward_us}) pass_us += * us *= what_if.batch / what_if.passes;
  buckets.back().forward_us += pass_us * (what_if.passes - 1);
  buckets.front().forward_us += rest_us;
  return profile;
}

}  // namespace deft::replay
