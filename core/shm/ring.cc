#include "core/shm/ring.h"

namespace deft::shm {

Push Producer::push(const Record& record) {
  if (tail_ - head_ >= records_.size()) {
    const std::uint64_t head_untrusted = control_.head.load(std::memory_order_acquire);
    if (head_untrusted < head_ || head_untrusted > tail_) return Push::kCorrupt;
    head_ = head_untrusted;
    if (tail_ - head_ >= records_.size()) return Push::kFull;
  }
  records_[tail_ & (records_.size() - 1)] = record;
  ++tail_;
  // Both sequentially consistent: either we see `sleeping`, or the consumer's second look sees the new tail.
  control_.tail.store(tail_, std::memory_order_seq_cst);
  if (control_.sleeping.load(std::memory_order_seq_cst) == 0) return Push::kDone;
  return control_.sleeping.exchange(0, std::memory_order_seq_cst) != 0 ? Push::kWake : Push::kDone;
}

Pop Consumer::pop(Record& record) {
  if (head_ == tail_) {
    const std::uint64_t tail_untrusted = control_.tail.load(std::memory_order_acquire);
    if (tail_untrusted == head_) return Pop::kEmpty;
    if (tail_untrusted < head_ || tail_untrusted - head_ > records_.size()) return Pop::kCorrupt;
    tail_ = tail_untrusted;
  }
  record = records_[head_ & (records_.size() - 1)];
  // The copy is made before anything looks at it, and is not made again.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  ++head_;
  control_.head.store(head_, std::memory_order_release);
  return Pop::kRecord;
}

bool Consumer::prepare_to_sleep() {
  control_.sleeping.store(1, std::memory_order_seq_cst);
  if (control_.tail.load(std::memory_order_seq_cst) == head_) return true;
  woke();
  return false;
}

void Consumer::woke() { control_.sleeping.store(0, std::memory_order_relaxed); }

}  // namespace deft::shm
