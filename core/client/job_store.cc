#include "core/client/job_store.h"

#include <algorithm>

#include "core/ipc/wire.h"

namespace deft::client {
namespace {

constexpr TimeUs kLeastPatienceUs = 100'000;  // a value that is there must have time to come

}  // namespace

Result<void> JobStore::set(const std::string& key, std::span<const std::byte> value) {
  const std::string_view texts[] = {key};
  return session_.connection().send(ipc::encode(ipc::StoreItem{}, ipc::MessageKind::kStoreSet, texts, value));
}

Result<std::vector<std::vector<std::byte>>> JobStore::get(std::span<const std::string> keys, TimeUs deadline_us) {
  std::vector<std::uint32_t> requests;
  for (const std::string& key : keys) {
    ipc::StoreItem item;
    item.request =
        requests.emplace_back(session_.requests().next_number());  // unlike any other number that is asked with
    if (auto sent = session_.connection().send(ipc::encode(item, ipc::MessageKind::kStoreGet, {key})); !sent)
      return tl::unexpected(sent.error());
  }
  std::vector<std::vector<std::byte>> values;
  for (const std::uint32_t request : requests) {
    const TimeUs until_us = std::max(deadline_us, MonotonicClock::now() + kLeastPatienceUs);
    auto packet = session_.requests().answer(ipc::MessageKind::kStoreValue, request, until_us);
    if (!packet) return tl::unexpected(packet.error());
    auto item = ipc::decode<ipc::StoreItem>(packet->bytes, ipc::MessageKind::kStoreValue, 1);
    if (!item) return tl::unexpected(item.error());
    values.emplace_back(item->tail.begin(), item->tail.end());
  }
  return values;
}

}  // namespace deft::client
