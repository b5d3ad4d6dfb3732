// The environment of deft-mpi: the daemon's, without what belongs to the daemon's own place in an MPI job.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace deft::link::mpi_backend {

// `variables` ("NAME=value") as deft-mpi gets them. What an mpirun or srun told the daemon about itself goes; the user's
// parameters (OMPI_MCA_...) stay. `interface`: the NIC to use; empty if MPI chooses by its own parameters.
// `message_bytes`: of the largest message.
std::vector<std::string> helper_environment(std::span<const std::string> variables, const std::string& interface,
                                            std::size_t message_bytes);

std::vector<std::string> own_environment();

}  // namespace deft::link::mpi_backend
