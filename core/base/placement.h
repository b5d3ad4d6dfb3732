// Finds out which worker this process is and where the job's leader listens, from the variables that launchers set.
//
//   auto placement = find_placement(config, [](const char* name) { return std::getenv(name); });
//
// The first of these sets of variables that is present decides: deftrun's (DEFT_RANK, DEFT_WORLD_SIZE, DEFT_LOCAL_RANK,
// DEFT_LOCAL_SIZE), torchrun's (RANK, ...), Open MPI's (OMPI_COMM_WORLD_RANK, ...), Slurm's (SLURM_PROCID, ...). If none is
// present, the process is a single worker. The variables are different in each process, so they are no options.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/config.h"
#include "core/base/status.h"

namespace deft {

// A worker's place in its job.
struct Placement {
  std::uint32_t rank = 0;
  std::uint32_t size = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_size = 1;
  std::string leader;  // host:port of the daemon on rank 0's node
  std::string source;  // the launcher whose variables were read, for errors; empty: none, so this worker is alone
};

// Looks up a variable by name; nullptr if it is not set.
using Environment = std::function<const char*(const char*)>;

// kInvalid if the numbers contradict each other; the error names the variables. Any thread, if `environment` allows it.
Result<Placement> find_placement(const Config& config, const Environment& environment);

}  // namespace deft
