// The processor time that some work takes on this thread: other load on the machine does not count.
//
//   const double s = seconds([&] { reduce(...); });
#pragma once

#include <ctime>

namespace deft::bench {

inline double processor_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
}

template <typename Work>
double seconds(Work work) {
  const double start = processor_seconds();
  work();
  return processor_seconds() - start;
}

}  // namespace deft::bench
