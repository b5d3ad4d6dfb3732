// A producer against a consumer that writes any words at any time: it stays within the ring and never overwrites more
// than the consumer said it has read.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/shm/ring.h"

namespace {

constexpr std::size_t kRecords = 8;

std::uint64_t word_at(const std::uint8_t* data, std::size_t bytes, std::size_t at) {
  std::uint64_t word = 0;
  if (at < bytes) std::memcpy(&word, data + at, bytes - at < sizeof word ? bytes - at : sizeof word);
  return word;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using namespace deft::shm;
  auto control = std::make_unique<RingControl>();
  auto records = std::make_unique<std::array<Record, kRecords>>();
  Producer producer(*control, *records);
  std::uint64_t pushed = 0, newest_head = 0;
  for (std::size_t at = 0; at < bytes; at += 1 + sizeof(std::uint64_t)) {
    const std::uint64_t word = word_at(data, bytes, at + 1);
    switch (data[at] % 5) {
      case 0: control->head = word; break;
      case 1: control->head = pushed - word % 10; break;
      case 2: control->tail = word; break;
      case 3: control->sleeping = static_cast<std::uint32_t>(word); break;
      default:
        for (std::uint64_t i = 0; i < word % 20; ++i) {
          const Push outcome = producer.push(RanRecord{.launch = pushed});
          if (outcome == Push::kFull || outcome == Push::kCorrupt) break;
          if (control->head > newest_head && control->head <= pushed) newest_head = control->head;
          ++pushed;
          if (pushed - newest_head > kRecords) std::abort();  // an unread record was overwritten
          if (control->tail != pushed) std::abort();
        }
    }
  }
  return 0;
}
