#include "core/client/completions.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "core/base/signals.h"

namespace deft::client {

Completions::~Completions() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<void> Completions::when_reduced(const GradientGroup& group, std::size_t first, std::size_t count,
                                       std::uint64_t generation, Callback call) {
  if (auto ok = group.check_range(first, count); !ok) return ok;
  const auto ask = [progress = group.progress(), first, count, generation]() -> std::optional<Result<void>> {
    if (progress->finished(first, count, generation)) return Result<void>{};
    if (!progress->released()) return std::nullopt;
    return Result<void>(fail(ErrorKind::kInvalid, "the group was released before these gradients were reduced"));
  };
  return add({ask, std::move(call), std::nullopt});
}

Result<void> Completions::when_done(std::uint64_t operation, Callback call) {
  const auto ask = [this, operation] { return session_.requests().result_of(operation); };
  return add({ask, std::move(call), std::nullopt});
}

Result<void> Completions::add(Watch watch) {
  if (auto ok = session_.connection().usable(); !ok) return ok;
  {
    const std::lock_guard lock(mutex_);
    if (auto ok = start_thread(); !ok) return ok;
    added_.push_back(std::move(watch));
  }
  changed_.notify_all();
  session_.connection().nudge();
  return {};
}

Result<void> Completions::start_thread() {
  if (thread_.joinable()) return {};
  const AllSignalsBlocked inherited_by_the_thread;
  try {
    thread_ = std::thread([this] { run(); });
    pthread_setname_np(thread_.native_handle(), "deft done");
  } catch (const std::system_error& e) {
    return fail(ErrorKind::kExhausted, std::string("cannot start the thread for callbacks: ") + e.what());
  }
  return {};
}

void Completions::run() {
  while (take_new()) {
    wait_for_some();
    call_those_with_results();
  }
}

bool Completions::take_new() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || !watches_.empty() || !added_.empty(); });
  std::move(added_.begin(), added_.end(), std::back_inserter(watches_));
  added_.clear();
  return !watches_.empty() || !ending_;
}

void Completions::wait_for_some() {
  const auto ended = session_.connection().wait([this] {
    bool any = false;
    for (Watch& watch : watches_) {
      watch.result = watch.ask();
      any |= watch.result.has_value();
    }
    const std::lock_guard lock(mutex_);
    return any || !added_.empty();
  });
  if (ended) return;
  for (Watch& watch : watches_)
    if (!watch.result) watch.result = tl::unexpected(ended.error());
}

void Completions::call_those_with_results() {
  const auto waiting = std::stable_partition(watches_.begin(), watches_.end(),
                                             [](const Watch& watch) { return watch.result.has_value(); });
  std::vector<Watch> done(std::make_move_iterator(watches_.begin()), std::make_move_iterator(waiting));
  watches_.erase(watches_.begin(), waiting);
  for (Watch& watch : done) watch.call(*watch.result);
}

}  // namespace deft::client
