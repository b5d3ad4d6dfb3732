// Opens MPI links.
#pragma once

#include <memory>
#include <string>

#include "core/link/link.h"

namespace deft::link::mpi_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);

// The MPI library that links of this machine would use, "Open MPI v4.1.4"; or why they cannot.
Result<std::string> library_version();

}  // namespace deft::link::mpi_backend
