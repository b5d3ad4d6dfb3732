#include "core/link/factories.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/base/text.h"
#include "core/link/mpi/bootstrap.h"
#include "core/link/mpi/link_impl.h"

namespace deft::link::mpi_backend {
namespace {

constexpr std::size_t kSlotBytes = 256 << 10;  // long enough to pay for its wake-ups, short enough for L2
constexpr std::size_t kLinkBytes = 64 << 20;   // of all slots of a link: with many nodes they get shorter
constexpr std::size_t kLeastSlotBytes = 4 << 10;

std::size_t slot_bytes_for(std::uint32_t nodes) {
  const std::size_t share = kLinkBytes / slots_bytes(nodes, 1) / kLeastSlotBytes * kLeastSlotBytes;
  return std::clamp(share, kLeastSlotBytes, kSlotBytes);
}

// MPI knows processes by the name of their job, which all nodes must make in the same way.
std::string job_name(const std::string& prefix) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "deft-%016llx", static_cast<unsigned long long>(stable_hash(prefix)));
  return text.data();
}

Result<std::unique_ptr<Transport>> connect(const LinkSpec& spec, const LinkGroup& group) {
  const AgentArguments arguments{.node = group.node,
                                 .nodes = group.nodes,
                                 .job = job_name(group.prefix),
                                 .slot_bytes = slot_bytes_for(group.nodes),
                                 .control_fd = -1,
                                 .data_fd = -1,
                                 .slots_fd = -1};
  Bootstrap bootstrap(group);
  auto helper = AgentProcess::start(arguments, spec.interface);
  if (!helper) {
    bootstrap.give_up(helper.error());
    return tl::unexpected(helper.error());
  }
  const auto tag_limit = bootstrap.connect(**helper);
  if (!tag_limit) {
    bootstrap.give_up(tag_limit.error());
    return tl::unexpected(tag_limit.error());
  }
  return std::make_unique<Transport>(*std::move(helper), group.node, group.nodes, arguments.slot_bytes, *tag_limit);
}

constexpr TimeUs kPatienceUs = 5'000'000;

}  // namespace

Result<std::string> library_version() {
  const AgentArguments alone{.node = 0,
                             .nodes = 1,
                             .job = "deft-version",
                             .slot_bytes = kLeastSlotBytes,
                             .control_fd = -1,
                             .data_fd = -1,
                             .slots_fd = -1};
  const auto helper = AgentProcess::start(alone, {});
  if (!helper) return tl::unexpected(helper.error());
  return Bootstrap::greeting(**helper, MonotonicClock::now() + kPatienceUs);
}

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group) {
  if (group.nodes == 1) return std::make_unique<LinkImpl>(spec, group, nullptr);
  auto transport = connect(spec, group);
  if (!transport) return tl::unexpected(transport.error().in("open " + spec.name()));
  return std::make_unique<LinkImpl>(spec, group, *std::move(transport));
}

}  // namespace deft::link::mpi_backend
