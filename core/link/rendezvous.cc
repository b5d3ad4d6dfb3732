#include "core/link/rendezvous.h"

namespace deft::link {
namespace {

std::string plural(std::size_t n, const std::string& noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

// The nodes whose keys are not in the store, as "1, 3"; empty if all are there.
std::string absent_nodes(const LinkGroup& group, std::string_view topic, std::size_t& count) {
  std::string absent;
  count = 0;
  for (std::uint32_t node = 0; node < group.nodes; ++node) {
    const std::string key = meeting_key(group, topic, node);
    if (node == group.node || group.store->get({&key, 1}, group.now_us())) continue;
    absent += (absent.empty() ? "" : ", ") + std::to_string(node);
    ++count;
  }
  return absent;
}

}  // namespace

std::string meeting_key(const LinkGroup& group, std::string_view topic, std::uint32_t node) {
  return group.prefix + "/" + std::string(topic) + "/" + std::to_string(node);
}

Result<std::vector<std::vector<std::byte>>> meet(const LinkGroup& group, std::string_view topic,
                                                 std::span<const std::byte> own) {
  if (auto published = group.store->set(meeting_key(group, topic, group.node), own); !published)
    return tl::unexpected(published.error());
  std::vector<std::string> keys;
  for (std::uint32_t node = 0; node < group.nodes; ++node) keys.push_back(meeting_key(group, topic, node));
  auto values = group.store->get(keys, group.connect_deadline_us);
  if (values && values->size() == keys.size()) return values;
  if (values) return fail(ErrorKind::kInternal, "the store gave back another number of values than keys");
  if (values.error().kind != ErrorKind::kTimeout) return values;
  std::size_t count = 0;
  const std::string absent = absent_nodes(group, topic, count);
  if (absent.empty()) return values;
  return fail(ErrorKind::kTimeout,
              plural(count, group.member) + " of " + std::to_string(group.nodes) +
                  " did not come before the deadline: " + absent,
              group.member == "node" ? "see the daemon's log on these nodes" : "see the output of these workers");
}

}  // namespace deft::link
