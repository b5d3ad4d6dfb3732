// Lets only so many of a kind through in each second, and counts the others: for log lines that strangers can cause.
//
//   RateLimit lines;
//   if (const auto left_out = lines.admit(now_us)) LOG(WARNING) << what << RateLimit::describe(*left_out);
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/base/clock.h"

namespace deft::daemon {

class RateLimit {
 public:
  static constexpr unsigned kASecond = 10;
  static constexpr TimeUs kSecondUs = 1'000'000;

  explicit RateLimit(unsigned most = kASecond, TimeUs within_us = kSecondUs)
      : most_(most), within_us_(within_us), began_us_(-within_us) {}

  // A value: this one may pass, and so many were held back since the last that passed.
  std::optional<std::uint64_t> admit(TimeUs now_us) {
    if (now_us - began_us_ >= within_us_) {
      began_us_ = now_us;
      passed_ = 0;
    }
    if (passed_ >= most_) {
      ++held_back_;
      return std::nullopt;
    }
    ++passed_;
    return std::exchange(held_back_, 0);
  }

  // A text for the end of the line that passed.
  static std::string describe(std::uint64_t left_out) {
    return left_out == 0 ? "" : " (" + std::to_string(left_out) + " lines like this were left out)";
  }

 private:
  unsigned most_;
  TimeUs within_us_, began_us_;
  unsigned passed_ = 0;
  std::uint64_t held_back_ = 0;
};

}  // namespace deft::daemon
