// The MPI process of a link: moves slots between the nodes as the daemon commands.
#pragma once

#include "core/link/mpi/agent/arguments.h"

namespace deft::link::mpi_backend {

// Runs until the daemon closes the data socket; the exit status.
int run_mpi_process(const AgentArguments& arguments);

}  // namespace deft::link::mpi_backend
