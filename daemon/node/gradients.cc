#include "daemon/node/gradients.h"

#include <algorithm>

namespace deft::daemon {

using model::BucketIndex;

Gradients::Gradients(std::vector<model::TensorSpec> specs, model::ArenaLayout layout, std::size_t workers)
    : map_(std::move(specs), std::move(layout)),
      workers_(workers),
      next_(workers, std::vector<std::uint64_t>(map_.specs().size(), 0)),
      complete_(map_.specs().size(), 0),
      remaining_(map_.specs().size()) {}

Result<Gradients::CommTask*> Gradients::enqueue(BucketIndex bucket, std::uint64_t generation,
                                                const GenerationDates& dates, TimeUs now_us) {
  const auto [it, added] = tasks_.try_emplace(TaskKey{generation, bucket});
  CommTask& task = it->second;
  if (added) {
    task.first_us = now_us;
    task.dates = dates;
    task.missing = static_cast<std::uint32_t>(map_.tensors_of(bucket).size() * workers_);
  }
  if (task.dates == dates) return &task;
  const bool ends_alike = task.dates.last_step == dates.last_step;
  const auto text = [ends_alike](const GenerationDates& d) {
    if (ends_alike) return "before step " + std::to_string(d.cycle_step);
    return "with step " + std::to_string(d.last_step);
  };
  return fail(ErrorKind::kMismatch,
              "generation " + std::to_string(generation) +
                  (ends_alike ? " comes after a flush or a new plan " : " ends ") + text(task.dates) +
                  " on one worker and " + text(dates) + " on another",
              "flush on all ranks between the same steps");
}

Result<void> Gradients::check_ready(std::size_t worker, std::uint32_t tensor, std::uint64_t generation) const {
  if (next_[worker][tensor] != generation)
    return fail(ErrorKind::kViolation, "tensor '" + map_.specs()[tensor].name + "' was handed in for step " +
                                           std::to_string(generation) + " where step " +
                                           std::to_string(next_[worker][tensor]) + " was due");
  if (generation >= complete_[tensor] + map_.layout().slots)
    return fail(ErrorKind::kViolation,
                "tensor '" + map_.specs()[tensor].name + "' was handed in for step " + std::to_string(generation) +
                    " while step " + std::to_string(complete_[tensor]) + " is still being reduced",
                "wait for a tensor before handing it in again");
  return {};
}

Result<std::vector<BucketIndex>> Gradients::notify_ready(std::size_t worker, TensorRange tensors,
                                                         std::uint64_t generation, const GenerationDates& dates,
                                                         std::uint32_t slot, TimeUs now_us) {
  const auto [first, count] = tensors;
  if (count == 0 || first >= map_.specs().size() || count > map_.specs().size() - first)
    return fail(ErrorKind::kViolation, "tensors " + std::to_string(first) + " + " + std::to_string(count) +
                                           " were handed in, of " + std::to_string(map_.specs().size()));
  if (map_.buckets().empty())
    return fail(ErrorKind::kViolation, "tensors were handed in before all ranks had declared them");
  if (slot != map_.slot_of(generation)) return fail(ErrorKind::kViolation, "a tensor was handed in in the wrong slot");
  std::vector<BucketIndex> ready;
  for (std::uint32_t tensor = first; tensor < first + count; ++tensor) {
    if (auto ok = check_ready(worker, tensor, generation); !ok) return tl::unexpected(ok.error());
    ++next_[worker][tensor];
    remaining_[tensor].try_emplace(generation, map_.extent_bytes(tensor));
    for (const BucketIndex bucket : map_.buckets_of(tensor)) {
      const auto task = enqueue(bucket, generation, dates, now_us);
      if (!task) return tl::unexpected(task.error());
      if (--(*task)->missing > 0) continue;
      (*task)->ready_us = std::max<TimeUs>(now_us, 1);
      ready.push_back(bucket);
    }
  }
  return ready;
}

bool Gradients::is_ready(BucketIndex bucket, std::uint64_t generation) const {
  const auto it = tasks_.find({generation, bucket});
  return it != tasks_.end() && it->second.ready_us != 0;
}

bool Gradients::is_ready(const model::BucketPiece& part, std::uint64_t generation, model::AllReduceHalf half) const {
  if (half == model::AllReduceHalf::kAllGather) return halves_.is_scattered(part, generation);
  return map_.for_each_piece(part, [&](const model::BucketPiece& piece) { return is_ready(piece.bucket, generation); });
}

Result<void> Gradients::start(BucketIndex bucket, std::uint64_t generation, const GenerationDates& dates,
                              std::uint64_t offset, std::uint64_t bytes, TimeUs now_us, model::AllReduceHalf half) {
  const model::BucketPiece part{bucket, offset, bytes};
  if (auto ok = map_.check_part(part); !ok) return ok;
  if (half == model::AllReduceHalf::kAllGather) return halves_.gather(part, generation);
  if (half == model::AllReduceHalf::kReduceScatter)
    if (auto ok = halves_.scatter(part, generation); !ok) return ok;
  Result<void> result;
  map_.for_each_piece(part, [&](const model::BucketPiece& piece) {
    const auto task = enqueue(piece.bucket, generation, dates, now_us);
    if (!task) {
      result = tl::unexpected(task.error());
    } else if ((*task)->ordered_bytes + piece.bytes > map_.buckets()[piece.bucket].bytes) {
      result = fail(ErrorKind::kViolation,
                    "the leader ordered bytes of bucket '" + map_.buckets()[piece.bucket].name + "' twice");
    } else {
      (*task)->ordered_bytes += piece.bytes;
    }
    return result.has_value();
  });
  return result;
}

Result<std::vector<FinishedTensors>> Gradients::notify_finish(BucketIndex bucket, std::uint64_t generation,
                                                              std::uint64_t offset, std::uint64_t bytes,
                                                              model::AllReduceHalf half) {
  std::vector<FinishedTensors> ended;
  const model::BucketPiece part{bucket, offset, bytes};
  if (half == model::AllReduceHalf::kReduceScatter) {
    if (halves_.scattered(part, generation)) return ended;
    return fail(ErrorKind::kInternal, "a reduce-scatter of bucket " + std::to_string(bucket) + " finished twice");
  }
  if (half == model::AllReduceHalf::kAllGather) halves_.gathered(part, generation);
  Result<void> result;
  map_.for_each_piece(part, [&](const model::BucketPiece& piece) {
    result = finish_piece(piece, generation, ended);
    return result.has_value();
  });
  if (!result) return tl::unexpected(result.error());
  finished_generations_ =
      tasks_.empty() ? generation + 1 : std::max(finished_generations_, tasks_.begin()->first.first);
  return ended;
}

Result<void> Gradients::finish_piece(const model::BucketPiece& piece, std::uint64_t generation,
                                     std::vector<FinishedTensors>& ended) {
  const model::Bucket& bucket = map_.buckets()[piece.bucket];
  const auto it = tasks_.find({generation, piece.bucket});
  if (it == tasks_.end() || it->second.finished_bytes + piece.bytes > bucket.bytes)
    return fail(ErrorKind::kInternal, "a part of bucket " + std::to_string(piece.bucket) + " finished twice");
  it->second.finished_bytes += piece.bytes;
  if (it->second.finished_bytes == bucket.bytes) tasks_.erase(it);
  for (const std::uint32_t tensor : map_.tensors_of(piece.bucket)) {
    const std::uint64_t bytes = map_.shared_bytes(piece, tensor);
    if (bytes == 0) continue;
    const auto left = remaining_[tensor].find(generation);
    if (left == remaining_[tensor].end() || left->second < bytes)
      return fail(ErrorKind::kInternal, "bytes of tensor '" + map_.specs()[tensor].name + "' were reduced twice");
    left->second -= bytes;
    if (left->second == 0) report_in_order(tensor, ended);
  }
  return {};
}

// Workers count generations: one that is told before an older one would be taken for both.
void Gradients::report_in_order(std::uint32_t tensor, std::vector<FinishedTensors>& ended) {
  auto& open = remaining_[tensor];
  while (!open.empty() && open.begin()->first == complete_[tensor] && open.begin()->second == 0) {
    open.erase(open.begin());
    const std::uint64_t generation = complete_[tensor]++;
    const bool joins = !ended.empty() && ended.back().generation == generation &&
                       ended.back().tensors.first + ended.back().tensors.count == tensor;
    if (joins)
      ++ended.back().tensors.count;
    else
      ended.push_back({{tensor, 1}, generation});
  }
}

void Gradients::collect_workers(Owed& owed) const {
  owed.workers.clear();
  bool named = false;
  for (std::size_t worker = 0; worker < workers_; ++worker) {
    for (const std::uint32_t tensor : map_.tensors_of(owed.bucket)) {
      if (next_[worker][tensor] > owed.generation) continue;
      if (!named) owed.tensor = tensor, named = true;
      owed.workers.push_back(worker);
      break;
    }
  }
}

Owed Gradients::missing(BucketIndex bucket, std::uint64_t generation) const {
  Owed owed{bucket, generation, 0, {}, 0};
  collect_workers(owed);
  return owed;
}

std::vector<Owed> Gradients::owed(TimeUs before_us) const {
  std::vector<Owed> out;
  for (const auto& [key, task] : tasks_) {
    if (task.ready_us != 0 || task.first_us > before_us) continue;
    Owed owed = missing(key.second, key.first);
    owed.since_us = task.first_us;
    owed.ordered = task.ordered_bytes > 0;
    out.push_back(std::move(owed));
  }
  return out;
}

std::optional<Owed> Gradients::unordered(TimeUs before_us) const {
  for (const auto& [key, task] : tasks_)
    if (task.ready_us != 0 && task.ordered_bytes == 0 && task.ready_us <= before_us)
      return Owed{key.second, key.first, task.ready_us, {}, map_.tensors_of(key.second).front()};
  return std::nullopt;
}

}  // namespace deft::daemon
