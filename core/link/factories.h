// How each backend opens its links. open_link() and open_worker_link() (link.h) choose among these functions; nobody else opens
// a link. Each backend has its function in its factory.cc.
//
//   auto link = gloo_backend::open(spec, group);
//
// All of them block until the members have found each other through group.store, or until group.connect_deadline_us. An error
// names the link and the missing members. Any thread.
#pragma once

#include <memory>
#include <string>

#include "core/link/link.h"

namespace deft::link {

// Links that the daemons run.
namespace gloo_backend {
Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);
}  // namespace gloo_backend

namespace ps_backend {
Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);
}  // namespace ps_backend

namespace mpi_backend {
Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);

// The MPI library that links of this machine would use, "Open MPI v4.1.4"; or why they cannot.
Result<std::string> library_version();
}  // namespace mpi_backend

// Links that the workers run.
namespace tcp_backend {
Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);
}  // namespace tcp_backend

namespace nccl_backend {
Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);

// The version of NCCL and the number of GPUs for people, "NCCL 2.27.3, 8 GPUs"; or the part that this machine lacks.
Result<std::string> usable();
}  // namespace nccl_backend

}  // namespace deft::link
