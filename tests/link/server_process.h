// Parameter servers as processes, forked before a test has threads.
#pragma once

#include <sys/types.h>

#include <string>

namespace deft::link::testing {

class ServerProcess {
 public:
  // On a free port of 127.0.0.1, or on `listen`; usable when the constructor returns.
  explicit ServerProcess(const std::string& listen = "127.0.0.1:*", const std::string& key_file = "");
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }
  void send(int signal) const;

 private:
  pid_t pid_ = 0;
  std::string address_;
};

// host:port+host:port of two servers that live as long as the test program.
const std::string& shared_servers();

}  // namespace deft::link::testing
