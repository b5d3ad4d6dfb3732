#include "daemon/leader/store_table.h"

namespace deft::daemon {

Result<void> StoreTable::set(wire::StoreSet message) {
  if (message.value.empty()) {
    erase(message.key);
    return {};
  }
  const auto [it, added] = values_.try_emplace(std::move(message.key));
  bytes_ += added ? it->first.size() : 0;
  bytes_ -= it->second.size();
  bytes_ += message.value.size();
  it->second = std::move(message.value);
  if (values_.size() > limits_.keys || bytes_ > limits_.bytes)
    return fail(ErrorKind::kExhausted, "the job's store holds more than " + std::to_string(limits_.keys) + " keys or " +
                                           std::to_string(limits_.bytes) + " bytes");
  const auto waiting = waiting_.extract(it->first);
  if (waiting.empty()) return {};
  waits_ -= waiting.mapped().size();
  for (const auto& request : waiting.mapped()) {
    if (--request->missing > 0) continue;
    if (auto ok = serve(request); !ok) return ok;  // a key that was there may have been taken away
  }
  return {};
}

void StoreTable::erase(const std::string& key) {
  const auto it = values_.find(key);
  if (it == values_.end()) return;
  bytes_ -= it->first.size() + it->second.size();
  values_.erase(it);
}

Result<void> StoreTable::get(const Peer& from, wire::StoreGet message) {
  return serve(std::make_shared<Request>(Request{from, std::move(message), 0}));
}

Result<void> StoreTable::serve(const std::shared_ptr<Request>& request) {
  for (const auto& key : request->get.keys) {
    if (values_.contains(key)) continue;
    if (++waits_ > limits_.waits)
      return fail(ErrorKind::kExhausted,
                  "more than " + std::to_string(limits_.waits) + " keys of the job's store are waited for");
    waiting_[key].push_back(request);
    ++request->missing;
  }
  if (request->missing == 0) answer(*request);
  return {};
}

void StoreTable::answer(const Request& request) {
  wire::StoreValue value{.request = request.get.request, .values = {}};
  value.values.reserve(request.get.keys.size());
  for (const auto& key : request.get.keys) value.values.push_back(values_.at(key));
  reply_(request.from, std::move(value));
}

}  // namespace deft::daemon
