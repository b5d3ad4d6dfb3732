#include "core/client/connection.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "core/ipc/wire.h"

namespace deft::client {
namespace {

constexpr auto kFullRingPause = std::chrono::microseconds(100);
constexpr TimeUs kPatienceUs = 500'000;     // between two looks at the socket
constexpr TimeUs kTextPatienceUs = 50'000;  // while a text is due

struct Goodbye {
  ipc::MessageHeader header;
};

}  // namespace

shm::Push SubmissionWriter::push(const shm::Record& record) {
  shm::Push outcome{};
  {
    const std::lock_guard lock(mutex_);
    outcome = producer_.push(record);
  }
  if (outcome == shm::Push::kWake) bell_.ring();
  return outcome;
}

Connection::Connection(Attachment attachment, ArrivalReceiver& receiver)
    : attachment_(std::move(attachment)),
      fork_guard_(attachment_.channel.descriptor()),
      writer_(attachment_),
      reader_(attachment_),
      receiver_(receiver) {}

class Connection::Inside {
 public:
  explicit Inside(Connection& connection) : connection_(connection) { ++connection_.inside_; }
  ~Inside() {
    --connection_.inside_;
    if (connection_.failure_.error()) connection_.changed_.notify_all();  // a connection that is being closed waits
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Connection& connection_;
};

void Connection::end() {
  Lock lock(mutex_);
  if (ended_) return;
  ended_ = true;
  static_cast<void>(attachment_.channel.send(ipc::encode(Goodbye{}, ipc::MessageKind::kGoodbye)));
  failure_.fail({ErrorKind::kInvalid, "the session was closed", "", ""});
  attachment_.own_bell.ring();  // whoever sleeps for completions
  changed_.notify_all();
  changed_.wait(lock, [this] { return inside_ == 0; });
}

Result<void> Connection::usable() {
  if (in_fork())
    return fail(ErrorKind::kInvalid, "this process was forked from the worker and cannot use its session",
                "use Deft in the worker itself, or start the process with spawn");
  if (!failure_.failed()) return {};
  const Lock lock(mutex_);
  return tl::unexpected(*failure_.error());
}

Result<void> Connection::submit(const shm::Record& record) {
  if (auto ok = usable(); !ok) return ok;
  const TimeUs patience_us = 2 * attachment_.timeout_us;
  TimeUs deadline_us = 0;
  while (true) {
    const shm::Push outcome = writer_.push(record);
    if (outcome == shm::Push::kWake || outcome == shm::Push::kDone) return {};
    if (outcome == shm::Push::kCorrupt)
      return fail(ErrorKind::kViolation, "the daemon's position in the submission ring makes no sense");
    if (auto ok = look(); !ok) return ok;
    const TimeUs now_us = MonotonicClock::now();
    if (deadline_us == 0) deadline_us = now_us + patience_us;
    if (now_us > deadline_us)
      return fail(ErrorKind::kTimeout,
                  "the daemon on this node has taken no record for " + std::to_string(patience_us / 1'000'000) + " s",
                  "see its log");
    std::this_thread::sleep_for(kFullRingPause);
  }
}

Result<void> Connection::send(std::span<const std::byte> bytes) {
  if (auto ok = usable(); !ok) return ok;
  auto sent = attachment_.channel.send(bytes);
  if (sent || sent.error().kind != ErrorKind::kLost) return sent;
  return wait([] { return false; });  // the end of the socket, or the error before it, is about to be read
}

Result<void> Connection::wait(const std::function<bool()>& done, std::atomic<TimeUs>* waited_us, TimeUs deadline_us) {
  if (auto ok = usable(); !ok) return ok;
  const TimeUs began_us = waited_us == nullptr ? 0 : MonotonicClock::now();
  Lock lock(mutex_);
  const Inside inside(*this);
  bool holds = done();
  TimeUs left_us = deadline_us == 0 ? kPatienceUs : deadline_us - MonotonicClock::now();
  while (!holds && !failure_.error() && left_us > 0) {
    if (!looking_)
      look_once(lock, std::min(texts_due_ ? kTextPatienceUs : kPatienceUs, left_us));
    else if (deadline_us == 0)
      changed_.wait(lock);
    else
      changed_.wait_for(lock, std::chrono::microseconds(left_us));
    holds = done();
    if (deadline_us != 0) left_us = deadline_us - MonotonicClock::now();
  }
  if (waited_us != nullptr) waited_us->fetch_add(MonotonicClock::now() - began_us, std::memory_order_relaxed);
  return holds || !failure_.error() ? Result<void>{} : tl::unexpected(*failure_.error());
}

Result<void> Connection::look() {
  if (auto ok = usable(); !ok) return ok;
  Lock lock(mutex_);
  if (!looking_) look_once(lock, 0);
  return failure_.error() ? tl::unexpected(*failure_.error()) : Result<void>{};
}

void Connection::nudge() {
  const Lock lock(mutex_);
  attachment_.own_bell.ring();
  changed_.notify_all();
}

// An exception loses what has come, so nobody may wait for it.
void Connection::look_once(Lock& lock, TimeUs patience_us) {
  looking_ = true;
  lock.unlock();
  try {
    Arrivals arrivals = reader_.gather(patience_us);
    lock.lock();
    texts_due_ = receiver_.receive(std::move(arrivals));
  } catch (const std::exception& e) {
    if (!lock.owns_lock()) lock.lock();
    failure_.fail({ErrorKind::kInternal, e.what(), "", "libdeft"});
  }
  looking_ = false;
  changed_.notify_all();
}

void JobFailure::fail(Error error) {
  if (error_) return;
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  if (call_) call_(*error_);
}

void JobFailure::expect_text(TimeUs now_us) { text_due_us_ = now_us + kTextDueUs; }

bool JobFailure::give_up_on_text(TimeUs now_us) {
  if (text_due_us_ == 0 || error_) return false;
  if (now_us < text_due_us_) return true;
  fail({ErrorKind::kLost, "the job failed, and the daemon on this node did not say why", "see its log", ""});
  return false;
}

void JobFailure::on_failure(std::function<void(const Error&)> call) {
  call_ = std::move(call);
  if (call_ && error_) call_(*error_);
}

}  // namespace deft::client
