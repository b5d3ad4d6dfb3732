#include "core/sim/update_book.h"

#include <algorithm>
#include <string>

namespace deft::sim {
namespace {

std::string of(model::BucketIndex bucket, std::uint64_t generation) {
  return "generation " + std::to_string(generation) + " of bucket " + std::to_string(bucket);
}

}  // namespace

UpdateBook::UpdateBook(std::vector<std::uint64_t> bucket_bytes) : books_(bucket_bytes.size()) {
  for (std::size_t i = 0; i < books_.size(); ++i) books_[i].bytes = bucket_bytes[i];
}

UpdateBook::Generation& UpdateBook::generation(Book& book, std::uint64_t number) {
  const auto it = std::lower_bound(book.pending.begin(), book.pending.end(), number,
                                   [](const Generation& g, std::uint64_t n) { return g.number < n; });
  if (it != book.pending.end() && it->number == number) return *it;
  return *book.pending.insert(it, Generation{number, 0, 0, -1, std::nullopt});
}

Result<void> UpdateBook::decided(const sched::Update& update, std::uint64_t forward_step) {
  Book& book = books_.at(update.bucket);
  const auto name = [&] { return "the update by " + of(update.bucket, update.generation); };  // only an error needs it
  if (update.first_step != book.next_step || update.last_step < update.first_step)
    return fail(ErrorKind::kInternal, name() + " merges steps " + std::to_string(update.first_step) + " to " +
                                          std::to_string(update.last_step) + ", the next step to merge is " +
                                          std::to_string(book.next_step));
  if (update.apply_step <= update.last_step || update.apply_step < forward_step)
    return fail(ErrorKind::kInternal, name() + " is due before step " + std::to_string(update.apply_step) +
                                          ", which has begun already or whose gradients it needs");
  Generation& entry = generation(book, update.generation);
  if (entry.update) return fail(ErrorKind::kInternal, name() + " was decided twice");
  entry.update = update;
  book.next_step = update.last_step + 1;
  return {};
}

Result<bool> UpdateBook::sent(model::BucketIndex bucket, const sched::Launch& launch, std::uint64_t bytes,
                              double now_us) {
  const std::uint64_t number = launch.generation;
  Book& book = books_.at(bucket);
  Generation& entry = generation(book, number);
  if (launch.half != sched::AllReduceHalf::kAllGather) entry.reduced_bytes += bytes;
  if (launch.half != sched::AllReduceHalf::kReduceScatter) entry.sent_bytes += bytes;
  if (entry.reduced_bytes > book.bytes || entry.sent_bytes > book.bytes)
    return fail(ErrorKind::kInternal, "bytes of " + of(bucket, number) + " were sent twice");
  if (entry.sent_bytes > entry.reduced_bytes)
    return fail(ErrorKind::kInternal, "bytes of " + of(bucket, number) + " were gathered before they were reduced");
  if (entry.sent_bytes < book.bytes || launch.half == sched::AllReduceHalf::kReduceScatter) return false;
  entry.complete_us = now_us;
  return true;
}

bool UpdateBook::may_begin(model::BucketIndex bucket, std::uint64_t step) const {
  for (const auto& entry : books_[bucket].pending)
    if (entry.update && entry.update->apply_step <= step && entry.complete_us < 0) return false;
  return true;
}

std::string UpdateBook::describe_wait(model::BucketIndex bucket, std::uint64_t step) const {
  const Book& book = books_[bucket];
  for (const auto& entry : book.pending)
    if (entry.update && entry.update->apply_step <= step && entry.complete_us < 0)
      return of(bucket, entry.number) + ", of which " + std::to_string(entry.sent_bytes) + " of " +
             std::to_string(book.bytes) + " bytes have arrived";
  return "nothing";
}

}  // namespace deft::sim
