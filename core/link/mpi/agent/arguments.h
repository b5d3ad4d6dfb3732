// The arguments with which the daemon starts deft-mpi.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace deft::link::mpi_backend {

struct AgentArguments {
  std::uint32_t node = 0;
  std::uint32_t nodes = 0;
  std::string job;  // the same on all nodes, and different for each link
  std::size_t slot_bytes = 0;
  int control_fd = -1;
  int data_fd = -1;
  int slots_fd = -1;
};

}  // namespace deft::link::mpi_backend
