#include "bench/daemon/private_daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace deft::bench {

PrivateDaemon::PrivateDaemon(std::string folder, int node, int port)
    : socket_(folder + "/node" + std::to_string(node) + ".sock"),
      listen_("127.0.0." + std::to_string(node + 1) + ":" + std::to_string(port)) {
  std::array<int, 2> ready{};
  if (pipe(ready.data()) != 0) throw std::runtime_error("no pipe");
  pid_ = fork();
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(ready[0]);
    setenv("STATE_DIRECTORY", (folder + "/state").c_str(), 1);  // of traces of failed jobs
    const std::vector<std::string> words{
        DEFTD_PATH,        "--socket=" + socket_, "--listen=" + listen_,
        "--links=gloo:lo", "--log-level=error",   "--ready-fd=" + std::to_string(ready[1])};
    std::vector<char*> arguments;
    for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    execv(DEFTD_PATH, arguments.data());
    _exit(127);
  }
  close(ready[1]);
  char byte = 0;
  const bool usable = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  if (!usable) throw std::runtime_error("deftd did not start on " + listen_);
}

PrivateDaemon::~PrivateDaemon() {
  kill(pid_, SIGTERM);
  waitpid(pid_, nullptr, 0);
}

double PrivateDaemon::cpu_ms() const {
  std::ifstream in("/proc/" + std::to_string(pid_) + "/stat");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 3; i < 14; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) * 1000.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace deft::bench
