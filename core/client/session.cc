#include "core/client/session.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/ipc/wire.h"
#include "core/link/backends.h"

namespace deft::client {
namespace {

constexpr auto kFullRingPause = std::chrono::microseconds(100);

struct Goodbye {
  ipc::Header header;
};

}  // namespace

bool Progress::finished(std::size_t first, std::size_t count, std::uint64_t step) const {
  for (std::size_t i = first; i < first + count; ++i)
    if (next_[i].load(std::memory_order_acquire) <= step) return false;
  return true;
}

void Progress::finish(std::size_t first, std::size_t count, std::uint64_t step) {
  for (std::size_t i = first; i < first + count; ++i)
    if (next_[i].load(std::memory_order_relaxed) <= step) next_[i].store(step + 1, std::memory_order_release);
}

Result<std::unique_ptr<Session>> Session::open(const Config& config, const Placement& placement) {
  auto attachment = attach(config, placement);
  if (!attachment) return tl::unexpected(attachment.error());
  return std::unique_ptr<Session>(new Session(std::move(*attachment)));
}

Session::Session(Attachment attachment)
    : fork_guard_(attachment.channel.descriptor()),
      attachment_(std::move(attachment)),
      producer_(attachment_.view.submission(), attachment_.view.submission_records()),
      consumer_(attachment_.view.completion(), attachment_.view.completion_records()) {
  for (const AnnouncedLink& link : attachment_.links) starts_[link.number];
}

void Session::end() {
  Lock lock(mutex_);
  if (ended_) return;
  ended_ = true;
  static_cast<void>(attachment_.channel.send(ipc::encode(Goodbye{}, ipc::MessageKind::kGoodbye)));
  fail_job({ErrorKind::kInvalid, "the session was closed", "", ""});
  attachment_.own_bell.ring();  // whoever sleeps for completions
  changed_.notify_all();
  changed_.wait(lock, [this] { return inside_ == 0; });
}

Result<void> Session::usable() {
  if (in_fork())
    return fail(ErrorKind::kInvalid, "this process was forked from the worker and cannot use its session",
                "use Deft in the worker itself, or start the process with spawn");
  if (!failed_.load(std::memory_order_acquire)) return {};
  const Lock lock(mutex_);
  return failure();
}

Result<void> Session::submit(const shm::Record& record) {
  if (auto ok = usable(); !ok) return ok;
  const TimeUs patience_us = 2 * attachment_.timeout_us;
  TimeUs deadline_us = 0;
  while (true) {
    shm::Push outcome{};
    {
      const Lock lock(submit_mutex_);
      outcome = producer_.push(record);
    }
    if (outcome == shm::Push::kWake) attachment_.daemon_bell.ring();
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

Result<void> Session::send(std::span<const std::byte> bytes) {
  if (auto ok = usable(); !ok) return ok;
  auto sent = attachment_.channel.send(bytes);
  if (sent || sent.error().kind != ErrorKind::kLost) return sent;
  return wait([] { return false; });  // the end of the socket, or the error before it, is about to be read
}

Result<void> Session::wait(const std::function<bool()>& done, bool counts) {
  if (auto ok = usable(); !ok) return ok;
  const TimeUs began_us = counts ? MonotonicClock::now() : 0;
  Lock lock(mutex_);
  ++inside_;
  bool holds = done();
  while (!holds && !failure_) {
    if (looking_)
      changed_.wait(lock);
    else
      look_once(lock, true);
    holds = done();
  }
  if (counts) waited_us_ += MonotonicClock::now() - began_us;
  --inside_;
  if (failure_) changed_.notify_all();  // a session that is being closed waits for us
  return holds ? Result<void>{} : failure();
}

Result<void> Session::look() {
  if (auto ok = usable(); !ok) return ok;
  Lock lock(mutex_);
  if (!looking_) look_once(lock, false);
  return failure_ ? failure() : Result<void>{};
}

std::uint32_t Session::add_group(std::shared_ptr<Progress> progress, std::shared_ptr<Generations> generations) {
  const Lock lock(mutex_);
  groups_.push_back({std::move(progress), std::move(generations)});
  return static_cast<std::uint32_t>(groups_.size() - 1);
}

Result<ipc::Packet> Session::answer(ipc::MessageKind kind, std::uint32_t number, TimeUs deadline_us) {
  const auto key = std::pair(kind, number);
  std::optional<ipc::Packet> packet;
  std::optional<Error> refusal;
  bool late = false;
  auto waited = wait([&] {
    if (auto found = answers_.extract(key)) packet = std::move(found.mapped());
    if (const auto outcome = outcomes_.find(number); kind == ipc::MessageKind::kHeapMade && outcome != outcomes_.end())
      refusal = outcome->second.error;
    late = deadline_us != 0 && MonotonicClock::now() >= deadline_us;
    return packet.has_value() || refusal.has_value() || late;
  });
  if (!waited) return tl::unexpected(waited.error());
  if (refusal) return tl::unexpected(*refusal);
  if (!packet) return fail(ErrorKind::kTimeout, "no answer from the daemon in time");
  return std::move(*packet);
}

bool Session::on_device() const {
  const auto& links = attachment_.links;
  return attachment_.daemon_links == 0 && !links.empty() &&
         std::all_of(links.begin(), links.end(), [](const AnnouncedLink& link) {
           const link::Backend* backend = link::find_backend(link.spec.backend);
           return backend != nullptr && backend->takes_device_memory;
         });
}

Result<shm::Record> Session::next_start(std::uint32_t link) {
  std::optional<shm::Record> start;
  auto waited = wait([&] {
    auto& waiting = starts_.at(link);
    if (waiting.empty()) return false;
    start = waiting.front();
    waiting.pop_front();
    return true;
  });
  if (!waited) return tl::unexpected(waited.error());
  return *start;
}

void Session::report(const Error& error) {
  ipc::ErrorMessage message;
  message.error_kind = static_cast<std::uint32_t>(error.kind);
  const auto cut = [](const std::string& text) { return std::string_view(text).substr(0, ipc::kMaxTextBytes); };
  static_cast<void>(
      send(ipc::encode(message, ipc::MessageKind::kError, {cut(error.what), cut(error.fix), cut(error.where)})));
}

void Session::on_failure(std::function<void(const Error&)> call) {
  const Lock lock(mutex_);
  on_failure_ = std::move(call);
  if (on_failure_ && failure_) on_failure_(*failure_);
}

void Session::expect(std::uint64_t operation) {
  const Lock lock(mutex_);
  outcomes_[operation] = {};
}

void Session::forget(std::uint64_t operation) {
  const Lock lock(mutex_);
  outcomes_.erase(operation);
}

Result<bool> Session::finished(std::uint64_t operation) {
  auto looked = look();
  const Lock lock(mutex_);
  const auto& outcome = outcomes_.at(operation);
  if (outcome.error) return tl::unexpected(*outcome.error);
  if (!outcome.done && !looked) return tl::unexpected(looked.error());
  return outcome.done;
}

Result<void> Session::wait_for(std::uint64_t operation) {
  std::optional<Error> error;
  auto waited = wait([&] {
    const auto& outcome = outcomes_.at(operation);
    error = outcome.error;
    return outcome.done;
  });
  if (waited && error) return tl::unexpected(*error);
  return waited;
}

}  // namespace deft::client
