// How the ranks of an NCCL link learn, before they connect, which NCCL and which GPU each of them has.
//
//   RankInfo own;                                               // filled in; rank 0 adds NCCL's id
//   auto all = exchange(group, own);                            // by rank; an error if versions differ
//   const int device = device_of(*all, group.node, current_device);
#pragma once

#include <nccl.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/link/link.h"

namespace deft::link::nccl_backend {

struct RankInfo {
  std::uint64_t magic = 0x3243434e54464544;  // "DEFTNCC2"
  std::int32_t version = 0;                  // of NCCL
  std::int32_t devices = 0;                  // GPUs that this rank sees
  std::array<char, 40> machine{};            // the same in all containers of a machine, and until it is started again
  std::array<char, 24> gpu{};                // PCI address of the current GPU
  ncclUniqueId id{};                         // rank 0's id counts
};
static_assert(sizeof(RankInfo) == 80 + NCCL_UNIQUE_ID_BYTES);

// The number by which this machine is told from others.
std::array<char, 40> machine_id();

Result<std::vector<RankInfo>> exchange(const LinkGroup& group, const RankInfo& own);

// The GPU for `rank`: its current one, if the ranks on its machine have chosen different GPUs. If all of them have the same
// one, nobody has chosen. Then each takes the GPU of its place among them, if there are enough: NCCL wants a GPU for each rank.
int device_of(std::span<const RankInfo> all, std::uint32_t rank, int current);

}  // namespace deft::link::nccl_backend
