#include "daemon/wire/store.h"

#include <algorithm>
#include <chrono>

namespace deft::daemon {

void StoreTable::set(const proto::StoreSet& message) {
  values_[message.key()] = message.value();
  std::erase_if(waiters_, [this](const Waiter& waiter) { return answer(waiter); });
}

void StoreTable::get(const Peer& from, const proto::StoreGet& message) {
  Waiter waiter{from, message};
  if (!answer(waiter)) waiters_.push_back(std::move(waiter));
}

bool StoreTable::answer(const Waiter& waiter) {
  proto::StoreValue reply;
  reply.set_request(waiter.request.request());
  for (const auto& key : waiter.request.keys()) {
    const auto it = values_.find(key);
    if (it == values_.end()) return false;
    reply.add_values(it->second);
  }
  reply_(waiter.peer, std::move(reply));
  return true;
}

Result<void> StoreClient::set(const std::string& key, std::span<const std::byte> value) {
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return tl::unexpected(cancelled_);
  }
  proto::Envelope envelope;
  envelope.mutable_store_set()->set_key(key);
  envelope.mutable_store_set()->set_value(value.data(), value.size());
  reactor_.post([this, alive = alive_, envelope = std::move(envelope)] {
    if (*alive) send_(envelope);
  });
  return {};
}

Result<std::vector<std::vector<std::byte>>> StoreClient::get(std::span<const std::string> keys, TimeUs deadline_us) {
  proto::Envelope envelope;
  for (const auto& key : keys) envelope.mutable_store_get()->add_keys(key);
  std::future<Values> future;
  std::uint64_t request = 0;
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return tl::unexpected(cancelled_);
    request = next_request_++;
    future = waiting_[request].get_future();
  }
  envelope.mutable_store_get()->set_request(request);
  reactor_.post([this, alive = alive_, envelope = std::move(envelope)] {
    if (*alive) send_(envelope);
  });
  const TimeUs wait_us = std::max<TimeUs>(deadline_us - MonotonicClock::now(), 0);
  if (future.wait_for(std::chrono::microseconds(wait_us)) == std::future_status::ready) return future.get();
  const std::lock_guard lock(mutex_);
  if (waiting_.erase(request) == 0) return future.get();  // it came in the last moment
  std::string missing;
  for (const auto& key : keys) missing += (missing.empty() ? "" : ", ") + key;
  return fail(ErrorKind::kTimeout, "no answer for " + missing);
}

void StoreClient::ask(const std::string& key, std::function<void(std::span<const std::byte>)> answered) {
  proto::Envelope envelope;
  {
    const std::lock_guard lock(mutex_);
    if (is_cancelled_) return;
    asked_[next_request_] = std::move(answered);
    envelope.mutable_store_get()->set_request(next_request_++);
  }
  envelope.mutable_store_get()->add_keys(key);
  send_(std::move(envelope));
}

void StoreClient::arrived(const proto::StoreValue& message) {
  if (const auto asked = asked_.extract(message.request())) {
    if (message.values_size() == 1)
      asked.mapped()(std::as_bytes(std::span(message.values(0).data(), message.values(0).size())));
    return;
  }
  const std::lock_guard lock(mutex_);
  const auto it = waiting_.find(message.request());
  if (it == waiting_.end()) return;
  std::vector<std::vector<std::byte>> values;
  for (const auto& value : message.values()) {
    const auto bytes = std::as_bytes(std::span(value.data(), value.size()));
    values.emplace_back(bytes.begin(), bytes.end());
  }
  it->second.set_value(std::move(values));
  waiting_.erase(it);
}

void StoreClient::cancel(const Error& reason) {
  *alive_ = false;
  asked_.clear();
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) return;
  is_cancelled_ = true;
  cancelled_ = reason;
  for (auto& [request, promise] : waiting_) promise.set_value(tl::unexpected(reason));
  waiting_.clear();
}

}  // namespace deft::daemon
