#include "core/trace/trace_stream.h"

#include <chrono>
#include <utility>

namespace deft::trace {
namespace {

constexpr auto kPeriod = std::chrono::milliseconds(250);  // the ring holds the records of many such periods

template <typename Write>
Result<void> guarded(Write write) {  // throws nothing
  try {
    return write();
  } catch (const std::exception& error) {
    return fail(ErrorKind::kExhausted, std::string("no memory to write the trace: ") + error.what());
  }
}

}  // namespace

TraceStream::TraceStream(std::shared_ptr<const Recorder> recorder, std::unique_ptr<TraceWriter> writer,
                         Recorder::Cursor from, OnError on_error)
    : recorder_(std::move(recorder)),
      writer_(std::move(writer)),
      on_error_(std::move(on_error)),
      records_(recorder_->clocks()),
      cursor_(from),
      thread_([this] { run(); }) {}

TraceStream::~TraceStream() {
  end();
  thread_.join();
}

void TraceStream::end() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ending_, true)) return;
    last_ = recorder_->now().next;
  }
  changed_.notify_all();
}

void TraceStream::add(TraceGroup group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(std::move(group));
}

Result<void> TraceStream::write(const std::vector<TraceGroup>& groups, std::uint64_t until) {
  for (const TraceGroup& group : groups)
    if (auto ok = writer_->group(group); !ok) return ok;
  records_.clear();
  recorder_->read(cursor_, records_, until);
  return writer_->records(records_);
}

void TraceStream::run() {
  Result<void> ok = guarded([this] { return writer_->records(records_); });
  std::unique_lock lock(mutex_);
  for (bool ending = false; ok && !ending;) {
    changed_.wait_for(lock, kPeriod, [this] { return ending_; });
    ending = ending_;
    const std::uint64_t until = last_;
    const auto groups = std::exchange(groups_, {});
    lock.unlock();
    ok = guarded([&] { return write(groups, until); });
    if (!ok || cursor_.lost > 0 || writer_->left_out() > 0) is_whole_ = false;
    if (ok && ending) ok = writer_->finish(cursor_.lost);
    lock.lock();
  }
  if (!ok) is_whole_ = false, on_error_(ok.error());
  ended_ = true;
}

}  // namespace deft::trace
