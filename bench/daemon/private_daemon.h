// A deftd of this benchmark's own, on a loopback address, ended with its owner.
#pragma once

#include <sys/types.h>

#include <string>

namespace deft::bench {

class PrivateDaemon {
 public:
  PrivateDaemon(std::string folder, int node, int port);  // ready when this returns; throws std::runtime_error
  ~PrivateDaemon();
  PrivateDaemon(const PrivateDaemon&) = delete;
  PrivateDaemon& operator=(const PrivateDaemon&) = delete;

  [[nodiscard]] const std::string& socket() const { return socket_; }
  [[nodiscard]] const std::string& listen() const { return listen_; }
  [[nodiscard]] double cpu_ms() const;  // used so far

 private:
  std::string socket_, listen_;
  pid_t pid_ = -1;
};

}  // namespace deft::bench
