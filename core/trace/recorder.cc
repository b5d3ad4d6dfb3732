#include "core/trace/recorder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace deft::trace {

Recorder::Recorder(std::size_t records)
    : mask_(records - 1), words_(static_cast<Word*>(std::calloc(records, sizeof(TraceRecord)))) {
  if (words_ == nullptr) throw std::bad_alloc();
}

// Words are written with release and read with acquire. So a reader that has seen a word of the next record in this place sees
// next_ that far, too.
void Recorder::add(const TraceRecord& record) {
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &record, sizeof(record));
  const std::uint64_t index = next_.load(std::memory_order_relaxed);
  Word* const at = place(index);
  for (std::size_t i = 0; i < words.size(); ++i) at[i].store(words[i], std::memory_order_release);
  next_.store(index + 1, std::memory_order_release);
  if (record.kind() == TraceKind::kClock) clocks_.newest[clocks_.count++ % clocks_.newest.size()] = record;
}

std::vector<TraceRecord> Recorder::clocks() const {
  const std::size_t size = clocks_.newest.size(), held = std::min(clocks_.count, size);
  std::vector<TraceRecord> records;
  for (std::size_t i = clocks_.count - held; i < clocks_.count; ++i) records.push_back(clocks_.newest[i % size]);
  return records;
}

void Recorder::read(Cursor& cursor, std::vector<TraceRecord>& out, std::uint64_t until) const {
  const std::uint64_t end = next_.load(std::memory_order_acquire);
  if (cursor.next + size() <= end) {
    const std::uint64_t oldest = end - size() + 1;  // the place before it may be overwritten by now
    cursor.lost += oldest - cursor.next;
    cursor.next = oldest;
  }
  for (; cursor.next < std::min(end, until); ++cursor.next) {
    std::array<std::uint64_t, kWords> words;
    const Word* const at = place(cursor.next);
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = at[i].load(std::memory_order_acquire);
    if (next_.load(std::memory_order_acquire) >= cursor.next + size()) {
      ++cursor.lost;
      continue;
    }
    TraceRecord record;
    std::memcpy(static_cast<void*>(&record), words.data(), sizeof(record));
    out.push_back(record);
  }
}

}  // namespace deft::trace
