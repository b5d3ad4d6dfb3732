// Runs a deftd for a benchmark, on a loopback address. The destructor ends it.
#pragma once

#include <sys/types.h>

#include <string>

namespace deft::bench {

class PrivateDaemon {
 public:
  PrivateDaemon(std::string folder, int node, int port);  // returns when it is ready; throws std::runtime_error
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;

  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] const std::string& listen() const { return listen_; }
  [[nodiscard]] double cpu_ms() const;  // the CPU time that it has used so far

 private:
  std::string socket_, listen_;
  pid_t pid_ = -1;
};

}  // namespace deft::bench
