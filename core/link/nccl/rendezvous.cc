#include "core/link/nccl/rendezvous.h"

#include <algorithm>
#include <cstring>
#include <fstream>

#include "core/link/nccl/libraries.h"
#include "core/link/rendezvous.h"

namespace deft::link::nccl_backend {
namespace {

Result<RankInfo> read_info(const std::vector<std::byte>& value, const std::string& who) {
  RankInfo info;
  if (value.size() == sizeof info) std::memcpy(&info, value.data(), sizeof info);
  if (value.size() != sizeof info || info.magic != RankInfo{}.magic)
    return fail(ErrorKind::kViolation, who + " published no NCCL rank information",
                "install the same version of Deft on all nodes");
  return info;
}

}  // namespace

std::array<char, 40> machine_id() {
  std::array<char, 40> id{};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(id.data(), id.size() - 1);
  return id;
}

Result<std::vector<RankInfo>> exchange(const LinkGroup& group, const RankInfo& own) {
  const auto values = meet(group, "nccl", std::as_bytes(std::span(&own, 1)));
  if (!values) return tl::unexpected(values.error());
  std::vector<RankInfo> all;
  for (std::size_t peer = 0; peer < values->size(); ++peer) {
    const std::string who = group.member + " " + std::to_string(peer);
    const auto info = read_info((*values)[peer], who);
    if (!info) return tl::unexpected(info.error());
    if (info->version != own.version)
      return fail(ErrorKind::kMismatch,
                  who + " has NCCL " + version_text(info->version) + ", " + group.member + " " +
                      std::to_string(group.node) + " has NCCL " + version_text(own.version),
                  "install the same version of NCCL on all nodes");
    all.push_back(*info);
  }
  return all;
}

int device_of(std::span<const RankInfo> all, std::uint32_t rank, int current) {
  const RankInfo& own = all[rank];
  if (own.machine == std::array<char, 40>{}) return current;  // unknown
  int neighbours = 0, place = 0;
  for (std::uint32_t other = 0; other < all.size(); ++other) {
    if (all[other].machine != own.machine) continue;
    if (all[other].gpu != own.gpu || all[other].devices != own.devices) return current;
    if (other < rank) ++place;
    ++neighbours;
  }
  return neighbours > 1 && own.devices >= neighbours ? place : current;
}

}  // namespace deft::link::nccl_backend
