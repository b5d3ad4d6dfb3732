// What libFuzzer gave, taken from the front; zeros when it is used up.
//
//   Bytes bytes({data, size});
//   const auto act = bytes.take<std::uint8_t>();
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace deft::fuzz {

class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> data) : data_(data) {}

  template <typename T>
  T take() {
    T value{};
    copy_to(&value, sizeof value);
    return value;
  }
  void copy_to(void* target, std::size_t bytes) {
    const std::size_t here = std::min(bytes, data_.size());
    if (here > 0) std::memcpy(target, data_.data(), here);
    data_ = data_.subspan(here);
  }
  std::vector<std::byte> take_some(std::size_t bytes) {
    std::vector<std::byte> some(bytes);
    copy_to(some.data(), bytes);
    return some;
  }
  // Changes so many bytes of `target`. Each change takes three bytes: the place, and the new value.
  void spoil(std::span<std::byte> target, unsigned changes) {
    for (; changes > 0 && !target.empty(); --changes) {
      const std::size_t place = take<std::uint16_t>() % target.size();
      target[place] = take<std::byte>();
    }
  }
  [[nodiscard]] bool empty() const { return data_.empty(); }

 private:
  std::span<const std::uint8_t> data_;
};

}  // namespace deft::fuzz
