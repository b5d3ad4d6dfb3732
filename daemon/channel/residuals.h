// Keeps what encodings left out of a group's gradients on this node, and adds it to the next gradient of the same bytes (error
// feedback), so that nothing is lost for good.
//
//   Residuals residuals(elements);                     // zero
//   {
//     auto use = residuals.use(first, count);          // waits while another thread uses any of these elements
//     encode(values, use.values());
//     use.settled();                                   // if all of them are zero again
//   }                                                  // others may use them again
//   if (residuals.may_hold(first, count)) ...          // one of them may be other than zero
//
// Residuals belong to places in the arena: they outlive buckets, plans, codecs and links. Transfers of two generations may
// be under way for the same bytes on two links. Each takes and leaves residuals while it alone uses them, so the sum of
// the sent values and of the residuals stays right in any order. Thread-safe.
#pragma once

#include <cmath>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "core/link/slices.h"

namespace deft::daemon {

class Residuals {
 public:
  // `elements`: of a slot of the arena. Memory is taken as it is used.
  explicit Residuals(std::size_t elements);

  class Use {
   public:
    Use(Use&& other) noexcept = delete;
    Use& operator=(Use&&) = delete;
    ~Use();
    [[nodiscard]] std::span<float> values() const;
    void settled();

   private:
    friend class Residuals;
    Use(Residuals& owner, std::list<link::Range>::iterator range) : owner_(owner), range_(range) {}
    Residuals& owner_;
    const std::list<link::Range>::iterator range_;
  };
  // Elements from `first` on, within the slot. A thread has one use at a time.
  [[nodiscard]] Use use(std::size_t first, std::size_t count);
  // Whether they have been used since they were zero. Another thread may use them at any time.
  [[nodiscard]] bool may_hold(std::size_t first, std::size_t count);

 private:
  void mark(std::size_t begin, std::size_t end);
  void unmark(std::size_t begin, std::size_t end);

  struct Freed {
    void operator()(float* memory) const { std::free(memory); }
  };
  const std::unique_ptr<float[], Freed> values_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::list<link::Range> used_;
  std::map<std::size_t, std::size_t> held_;  // begin and end of ranges that may hold something; they do not touch
};

// The residual before this transfer: `residual` with `sent`, the encoding that this node sent, and without `brought`, this node's gradient.
// `largest` is the largest number that the encoding computed with. A result that may be the rounding of that number alone becomes 0: beside
// a gradient that exploded the older residual is lost anyway, and the rounding would act as a gradient.
inline float taken_back(float residual, float sent, float brought, float largest) {
  constexpr float kRounding = 4 * std::numeric_limits<float>::epsilon();
  const float kept = residual + (sent - brought);
  return std::abs(kept) > kRounding * largest ? kept : 0.0F;
}

// A sum that is not finite is no update. So what this node sent of it goes back to the residuals, without the gradient that was
// brought. `sums`: the result; `sent`: the encoding that this node sent, decoded. All have the same size. Elements that this node itself
// made not finite are left as they are: it took nothing of their residuals.
void take_back(std::span<float> residuals, std::span<const float> sums, std::span<const float> sent,
               std::span<const float> brought);

}  // namespace deft::daemon
