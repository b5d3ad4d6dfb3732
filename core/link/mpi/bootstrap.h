// Opens an MPI link: the nodes meet in the group's store, and the MPI processes find each other through it.
//
// A node that cannot go on says so in the store, so that all others know why at once, not at their deadline.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/link/link.h"
#include "core/link/mpi/agent_process.h"

namespace deft::link::mpi_backend {

class Bootstrap {
 public:
  explicit Bootstrap(const LinkGroup& group) : group_(group) {}

  // Connects the MPI process of `helper`, which has just started, to all others. Gives the largest tag that MPI has.
  Result<std::uint32_t> connect(AgentProcess& helper);

  // Waits for the first message of `helper`: the version of its MPI library.
  static Result<std::string> greeting(AgentProcess& helper, TimeUs deadline_us);

  // Tells the other nodes why this one does not take part.
  void give_up(const Error& error);

 private:
  void await(const AgentProcess& helper) const;
  Result<void> meet_others(const std::string& version);
  Result<std::uint32_t> await_connections(AgentProcess& helper);
  Result<void> serve_helper(AgentProcess& helper);
  Result<std::string> exchange(const std::string& own);
  [[nodiscard]] std::string topic() const;

  const LinkGroup& group_;
  std::uint32_t exchanges_ = 0;  // that this node has published its value for
  std::vector<bool> connected_;  // by node
};

}  // namespace deft::link::mpi_backend
