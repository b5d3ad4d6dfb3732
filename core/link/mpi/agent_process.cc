#include "core/link/mpi/agent_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/base/word_pointers.h"
#include "core/link/mpi/environment.h"

namespace deft::link::mpi_backend {
namespace {

constexpr TimeUs kFarewellUs = 3'000'000;  // the helper needs a fifth of it, or something is wrong with it
constexpr std::size_t kLastWords = 300;

std::string errno_text() { return std::strerror(errno); }

// posix_spawn's two objects.
class SpawnSettings {
 public:
  SpawnSettings() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    sigset_t all;
    sigset_t none;
    sigfillset(&all);
    sigemptyset(&none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setsigmask(&attributes, &none);
    // The process has a group of its own, because a Ctrl-C is for the daemon, which ends its links in order.
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

Result<void> socket_pair(Descriptor& ours, Descriptor& theirs) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(ErrorKind::kExhausted, "cannot make a socket: " + errno_text());
  }
  ours = Descriptor(ends[0]);
  theirs = Descriptor(ends[1]);
  return {};
}

}  // namespace

bool poll_until(std::span<pollfd> waits, TimeUs deadline_us) {
  while (true) {
    const TimeUs left = std::max<TimeUs>(0, deadline_us - MonotonicClock::now());
    const int ready = poll(waits.data(), waits.size(), static_cast<int>((left + 999) / 1000));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

Result<std::string> find_program() {
  std::error_code error;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& place : std::array{folder / "deft-mpi", folder.parent_path() / "bin" / "deft-mpi"}) {
    if (access(place.c_str(), X_OK) == 0) return place.string();
  }
  return fail(ErrorKind::kUnavailable, "there is no program deft-mpi in " + folder.string(),
              "build or install Deft with Open MPI's and PMIx's development packages there (scripts/setup test)");
}

Result<std::unique_ptr<AgentProcess>> AgentProcess::start(const AgentArguments& arguments,
                                                          const std::string& interface) {
  const auto program = find_program();
  if (!program) return tl::unexpected(program.error());
  std::unique_ptr<AgentProcess> helper(new AgentProcess);
  auto slots = shm::Segment::create("deft-mpi", slots_bytes(arguments.nodes, arguments.slot_bytes));
  if (!slots) return tl::unexpected(slots.error());
  helper->slots_ = *std::move(slots);
  helper->words_ = Descriptor(memfd_create("deft-mpi-words", MFD_CLOEXEC));
  if (!helper->words_.valid()) return fail(ErrorKind::kExhausted, "cannot make a memory file: " + errno_text());
  if (auto launched = helper->launch(*program, arguments, interface); !launched)
    return tl::unexpected(launched.error());
  return helper;
}

Result<void> AgentProcess::launch(const std::string& program, const AgentArguments& arguments,
                                  const std::string& interface) {
  Descriptor control;
  Descriptor data;
  if (auto made = socket_pair(control_, control); !made) return made;
  if (auto made = socket_pair(data_, data); !made) return made;
  SpawnSettings settings;
  posix_spawn_file_actions_addopen(&settings.actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.actions, words_.get(), 1);
  posix_spawn_file_actions_adddup2(&settings.actions, words_.get(), 2);
  for (const int fd : {control.get(), data.get(), slots_.descriptor()}) {
    posix_spawn_file_actions_adddup2(&settings.actions, fd, fd);  // onto itself: it is kept on exec
  }
  std::vector<std::string> words = {program,
                                    "serve",
                                    std::to_string(arguments.node),
                                    std::to_string(arguments.nodes),
                                    arguments.job,
                                    std::to_string(arguments.slot_bytes),
                                    std::to_string(control.get()),
                                    std::to_string(data.get()),
                                    std::to_string(slots_.descriptor())};
  std::vector<std::string> variables = helper_environment(own_environment(), interface, arguments.slot_bytes);
  const int error = posix_spawn(&pid_, program.c_str(), &settings.actions, &settings.attributes,
                                pointers_to(words).data(), pointers_to(variables).data());
  if (error == 0) return {};
  pid_ = -1;
  return fail(ErrorKind::kUnavailable, "cannot start " + program + ": " + std::strerror(error));
}

AgentProcess::~AgentProcess() {
  if (pid_ < 0) return;
  data_.reset();
  if (!connected_) send(ControlKind::kStop, {});
  shutdown(control_.get(), SHUT_WR);
  const TimeUs until = MonotonicClock::now() + kFarewellUs;
  while (hear(until)) continue;
  control_.reset();
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

bool AgentProcess::send_in_parts(ControlKind part, ControlKind last, std::string_view content) {
  constexpr std::size_t kMost = kMaxControlBytes - 1;
  for (; content.size() > kMost; content.remove_prefix(kMost))
    if (!send(part, content.substr(0, kMost))) return false;
  return send(last, content);
}

bool AgentProcess::send(ControlKind kind, std::string_view content) {
  const std::string message = static_cast<char>(kind) + std::string(content);
  return ::send(control_.get(), message.data(), message.size(), MSG_NOSIGNAL) >= 0;
}

std::optional<AgentProcess::Message> AgentProcess::hear(TimeUs deadline_us) {
  pollfd wait{control_.get(), POLLIN, 0};
  if (!poll_until({&wait, 1}, deadline_us)) return std::nullopt;
  std::string message(kMaxControlBytes, '\0');
  const ssize_t bytes = recv(control_.get(), message.data(), message.size(), MSG_DONTWAIT);
  if (bytes <= 0) return std::nullopt;
  return Message{static_cast<ControlKind>(message[0]), message.substr(1, static_cast<std::size_t>(bytes) - 1)};
}

std::string AgentProcess::last_words() const {
  std::string text(kLastWords, '\0');
  struct stat file {};
  fstat(words_.get(), &file);
  const off_t begin = std::max<off_t>(0, file.st_size - static_cast<off_t>(kLastWords));
  const ssize_t bytes = pread(words_.get(), text.data(), text.size(), begin);
  text.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  std::ranges::replace(text, '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace deft::link::mpi_backend
