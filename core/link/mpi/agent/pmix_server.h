// The PMIx server that the MPI process of this node finds its peers through: what Slurm's daemon or Open MPI's orted would
// be to it. The messages between nodes go through the daemon, whose store all nodes of the job share.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "core/link/mpi/agent/arguments.h"

namespace deft::link::mpi_backend {

class PmixServer {
 public:
  // Called on a thread of PMIx with this node's bytes, once for each exchange.
  using Exchange = std::function<void(const char* data, std::size_t bytes)>;

  // Starts the server, which lasts until the process ends. Empty, or why that failed.
  static std::string start(const AgentArguments& arguments, Exchange exchange);

  // Answers the running exchange with the bytes of all nodes.
  static void answer(const char* data, std::size_t bytes);

  // Adds what an MPI process of this server needs to this process's environment.
  static bool prepare_environment(const AgentArguments& arguments);
};

}  // namespace deft::link::mpi_backend
