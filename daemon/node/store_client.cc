#include "daemon/node/store_client.h"
#include "core/base/text.h"

#include <algorithm>
#include <chrono>

namespace deft::daemon {

Result<void> StoreClient::set(const std::string& key, std::span<const std::byte> value) {
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return tl::unexpected(cancelled_);
  }
  reactor_.post(
      [this, alive = alive_, message = wire::StoreSet{key, {value.begin(), value.end()}}] {
        if (*alive) send_(message);
      },
      owner_);
  return {};
}

Result<std::vector<std::vector<std::byte>>> StoreClient::get(std::span<const std::string> keys, TimeUs deadline_us) {
  wire::StoreGet message{.request = 0, .keys = {keys.begin(), keys.end()}};
  std::future<Values> future;
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return tl::unexpected(cancelled_);
    message.request = next_request_++;
    Waiting& waiting = waiting_[message.request];
    waiting.keys = keys.size();
    future = waiting.promise.get_future();
  }
  reactor_.post(
      [this, alive = alive_, message] {
        if (*alive) send_(message);
      },
      owner_);
  TimeUs wait_us = std::max<TimeUs>(deadline_us - reactor_.now_us(), kLeastPatienceUs);
  for (; wait_us > 0; wait_us = deadline_us - reactor_.now_us()) {  // once more if the process stood still
    if (future.wait_for(std::chrono::microseconds(wait_us)) == std::future_status::ready) return future.get();
  }
  const std::lock_guard lock(mutex_);
  if (waiting_.erase(message.request) == 0) return future.get();  // it came in the last moment
  return fail(ErrorKind::kTimeout, "no answer for " + joined(keys, ", "));
}

bool StoreClient::ended() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

void StoreClient::set_now(const std::string& key, std::span<const std::byte> value) {
  if (*alive_) send_(wire::StoreSet{key, {value.begin(), value.end()}});
}

void StoreClient::ask(const std::string& key, std::function<void(std::span<const std::byte>)> answered) {
  wire::StoreGet message{.request = 0, .keys = {key}};
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return;
    message.request = next_request_++;
    asked_[message.request] = std::move(answered);
  }
  send_(std::move(message));
}

std::optional<std::size_t> StoreClient::keys_asked(std::uint64_t request) {
  if (asked_.contains(request)) return 1;
  const std::lock_guard lock(mutex_);
  const auto it = waiting_.find(request);
  return it == waiting_.end() ? std::nullopt : std::optional(it->second.keys);
}

void StoreClient::arrived(wire::StoreValue message) {
  if (const auto asked = asked_.extract(message.request)) {
    if (message.values.size() == 1) asked.mapped()(message.values.front());
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto it = waiting_.find(message.request);
  if (it == waiting_.end()) return;
  it->second.promise.set_value(std::move(message.values));
  waiting_.erase(it);
}

void StoreClient::cancel(const Error& reason) {
  *alive_ = false;
  asked_.clear();
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) return;
  is_cancelled_ = true;
  cancelled_ = reason;
  for (auto& [request, waiting] : waiting_) waiting.promise.set_value(tl::unexpected(reason));
  waiting_.clear();
}

}  // namespace deft::daemon
