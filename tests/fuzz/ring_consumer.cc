// A consumer against a producer that writes any words at any time: it stays within the ring, gives each position once,
// and a corrupt ring stays corrupt or empty, never more records than were published.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "core/shm/ring.h"

namespace {

constexpr std::size_t kRecords = 8;

struct Input {
  const std::uint8_t* data;
  std::size_t bytes;

  template <typename Word>
  Word take() {
    Word word{};
    const std::size_t n = bytes < sizeof word ? bytes : sizeof word;
    std::memcpy(&word, data, n);
    data += n;
    bytes -= n;
    return word;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using namespace deft::shm;
  Input input{data, bytes};
  auto control = std::make_unique<RingControl>();
  // On the heap, alone: a read beside it is found.
  auto records = std::make_unique<std::array<Record, kRecords>>();
  Consumer consumer(*control, *records);
  std::uint64_t given = 0;
  while (input.bytes > 0) {
    switch (input.take<std::uint8_t>() % 6) {
      case 0: control->tail = input.take<std::uint64_t>(); break;
      case 1: control->tail = given + input.take<std::uint8_t>() % 12; break;
      case 2: control->head = input.take<std::uint64_t>(); break;
      case 3: control->sleeping = input.take<std::uint32_t>(); break;
      case 4:
        (*records)[input.take<std::uint8_t>() % kRecords] = RanRecord{.launch = input.take<std::uint64_t>()};
        break;
      default: {
        Record record;
        for (std::size_t i = 0; i < 2 * kRecords; ++i) {
          if (consumer.pop(record) != Pop::kRecord) break;
          ++given;
          if (control->head != given) std::abort();  // it publishes its own count, whatever was written there
        }
        if (consumer.prepare_to_sleep()) consumer.woke();
      }
    }
  }
  return 0;
}
