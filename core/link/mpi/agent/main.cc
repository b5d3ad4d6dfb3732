// deft-mpi: the helper of an MPI link. The daemon starts it once for each link; it starts the MPI process, which is this
// program again, and ends with it. So whatever MPI does to its process, the daemon gets an error and lives on.
#include <fcntl.h>
#include <linux/close_range.h>
#include <mpi.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/base/numbers.h"
#include "core/link/mpi/agent/mpi_process.h"
#include "core/link/mpi/agent/pmix_server.h"
#include "core/link/mpi/wire.h"

namespace deft::link::mpi_backend {
namespace {

constexpr int kWords = 9;          // of the command line
constexpr int kFarewellMs = 2000;  // the MPI process ends by itself well before

void send(int fd, ControlKind kind, const char* data, std::size_t bytes) {
  std::vector<char> message(bytes + 1);
  message[0] = static_cast<char>(kind);
  if (bytes > 0) std::memcpy(message.data() + 1, data, bytes);
  if (::send(fd, message.data(), message.size(), MSG_NOSIGNAL) < 0) std::perror("deft-mpi: cannot tell the daemon");
}

// The daemon may have descriptors that are not its children's.
void close_all_but(std::array<int, 3> kept) {
  std::ranges::sort(kept);
  unsigned first = 3;
  for (const int fd : kept) {
    if (static_cast<unsigned>(fd) > first) syscall(SYS_close_range, first, fd - 1, 0);
    first = static_cast<unsigned>(fd) + 1;
  }
  syscall(SYS_close_range, first, ~0U, 0);
}

int children_ending() {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

// This program again, as the MPI process.
pid_t start_mpi(const AgentArguments& arguments, char** command_line) {
  if (!PmixServer::prepare_environment(arguments)) return -1;
  std::vector<char*> words(command_line, command_line + kWords);
  static char as_mpi[] = "mpi";
  words[1] = as_mpi;
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve("/proc/self/exe", words.data(), environ);
  std::perror("deft-mpi: cannot start itself again");
  _exit(1);
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) return "was ended by signal " + std::to_string(WTERMSIG(status));
  return "ended with status " + std::to_string(WEXITSTATUS(status));
}

// Serves the MPI process until it ends, or until the daemon closes its socket and the time for farewells is over.
int serve(const AgentArguments& arguments, pid_t mpi, int children_fd) {
  std::vector<char> message(kMaxControlBytes);
  std::string fenced;  // parts that have come
  bool daemon_left = false;
  while (true) {
    pollfd waits[] = {{children_fd, POLLIN, 0}, {daemon_left ? -1 : arguments.control_fd, POLLIN, 0}};
    if (poll(waits, 2, daemon_left ? kFarewellMs : -1) == 0) kill(mpi, SIGKILL);
    int status = 0;
    if (waitpid(mpi, &status, WNOHANG) == mpi) {
      const std::string how = how_it_ended(status);
      send(arguments.control_fd, ControlKind::kEnded, how.data(), how.size());
      return 0;
    }
    if (waits[1].revents == 0) continue;
    const ssize_t bytes = recv(arguments.control_fd, message.data(), message.size(), 0);
    if (bytes <= 0) daemon_left = true;
    if (bytes <= 0) continue;
    const auto kind = static_cast<ControlKind>(message[0]);
    if (kind == ControlKind::kStop) kill(mpi, SIGKILL);
    if (kind != ControlKind::kFencedPart && kind != ControlKind::kFenced) continue;
    fenced.append(message.data() + 1, static_cast<std::size_t>(bytes) - 1);
    if (kind == ControlKind::kFencedPart) continue;
    PmixServer::answer(fenced.data(), fenced.size());
    fenced.clear();
  }
}

int run_helper(const AgentArguments& arguments, char** command_line) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> version{};
  int length = 0;
  MPI_Get_library_version(version.data(), &length);
  send(arguments.control_fd, ControlKind::kHello, version.data(), std::strlen(version.data()));
  char start = 0;
  if (recv(arguments.control_fd, &start, 1, 0) != 1 || start != static_cast<char>(ControlKind::kStart)) return 0;
  const int children_fd = children_ending();  // before PMIx starts threads, which inherit the mask
  const int control = arguments.control_fd;
  const std::string problem = PmixServer::start(
      arguments, [control](const char* data, std::size_t bytes) { send(control, ControlKind::kFence, data, bytes); });
  if (!problem.empty()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    return 1;
  }
  const pid_t mpi = start_mpi(arguments, command_line);
  if (mpi < 0) {
    std::perror("deft-mpi: cannot start the MPI process");
    return 1;
  }
  close(arguments.data_fd);
  close(arguments.slots_fd);
  return serve(arguments, mpi, children_fd);
}

template <typename Number>
Number number(const char* text) {
  const auto value = parse_whole<Number>(text);
  if (!value) std::exit(2);
  return *value;
}

}  // namespace
}  // namespace deft::link::mpi_backend

int main(int argc, char** argv) {
  using namespace deft::link::mpi_backend;
  if (argc != kWords) {
    std::fputs("deft-mpi: the daemon starts this program for links of the backend mpi; it is of no use by hand\n",
               stderr);
    return 2;
  }
  const AgentArguments arguments{.node = number<std::uint32_t>(argv[2]),
                                 .nodes = number<std::uint32_t>(argv[3]),
                                 .job = argv[4],
                                 .slot_bytes = number<std::size_t>(argv[5]),
                                 .control_fd = number<int>(argv[6]),
                                 .data_fd = number<int>(argv[7]),
                                 .slots_fd = number<int>(argv[8])};
  if (std::string_view(argv[1]) == "mpi") return run_mpi_process(arguments);
  close_all_but({arguments.control_fd, arguments.data_fd, arguments.slots_fd});
  // Without PMIx's tidying up, which waits for its clients.
  _exit(run_helper(arguments, argv));
}
