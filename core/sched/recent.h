// Keeps the newest values of a series, at most kMost of them. The meters judge by them.
//
//   Recent<double, 32> steps_us;
//   steps_us.add(us);              // replaces the oldest value if there are kMost
//   for (double us : steps_us)     // in no particular order
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace deft::sched {

template <typename T, std::size_t kMost>
class Recent {
 public:
  void add(T value) {
    if (values_.size() < kMost)
      values_.push_back(std::move(value));
    else
      values_[count_ % kMost] = std::move(value);
    ++count_;
  }

  [[nodiscard]] std::size_t count() const { return count_; }  // how many values were added so far
  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] T& newest() { return values_[(count_ - 1) % kMost]; }  // only if a value was added
  [[nodiscard]] const T& newest() const { return values_[(count_ - 1) % kMost]; }
  [[nodiscard]] auto begin() const { return values_.begin(); }
  [[nodiscard]] auto end() const { return values_.end(); }

 private:
  std::vector<T> values_;  // a ring
  std::size_t count_ = 0;
};

}  // namespace deft::sched
