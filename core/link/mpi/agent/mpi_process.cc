#include "core/link/mpi/agent/mpi_process.h"

#include <mpi.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <optional>
#include <vector>

#include "core/link/mpi/wire.h"

namespace deft::link::mpi_backend {
namespace {

using Us = std::int64_t;

constexpr int kGreetingTag = 0;
constexpr int kFarewellTag = 1;
constexpr rlim_t kMostWordsBytes = 1 << 20;
constexpr Us kFarewellUs = 400'000;  // how long the last messages may take
constexpr Us kLostAfterUs = 50'000;  // a peer's last messages may come behind its farewell, over another NIC

// MPI sees what arrives only when it is asked. Between two questions this process sleeps, longer the longer nothing
// came, so that waiting costs next to nothing; a command from the daemon wakes it.
constexpr Us kShortestNapUs = 10;
constexpr Us kLongestNapUs = 2'000;
constexpr Us kIdleNapUs = 100'000;

Us now_us() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return Us{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

enum class WorkKind : std::uint8_t {
  kGreetingOut,
  kGreetingIn,
  kFarewellOut,
  kFarewellIn,
  kSend,
  kSendMatched,
  kReceive
};

MPI_Request post(WorkKind kind, void* data, int bytes, int peer, int tag, int& status) {
  MPI_Request request = MPI_REQUEST_NULL;
  switch (kind) {
    case WorkKind::kGreetingOut:
    case WorkKind::kFarewellOut:
    case WorkKind::kSend: status = MPI_Isend(data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request); break;
    case WorkKind::kSendMatched: status = MPI_Issend(data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request); break;
    case WorkKind::kGreetingIn:
    case WorkKind::kFarewellIn:
    case WorkKind::kReceive: status = MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &request); break;
  }
  return request;  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): MpiProcess::test() is where requests end
}

// A request that MPI works on.
struct Work {
  WorkKind kind;
  std::uint8_t slot = 0;
  std::uint16_t peer = 0;
  std::uint32_t bytes = 0;
  Us since = 0;
};

struct Peer {
  std::uint32_t farewell = 0;  // the node that left first, as the peer says in its farewell
  std::uint32_t greeting = 0;
  int greetings_left = 2;
  Us gone_at = 0;  // 0: it is here
  bool told_lost = false;
};

class MpiProcess {
 public:
  MpiProcess(const AgentArguments& arguments, std::byte* slots)
      : arguments_(arguments), slots_(slots), node_(arguments.node), peers_(arguments.nodes) {}

  int run();

 private:
  void greet();
  bool take_commands();
  void start(const Command& command);
  void begin(Work work, void* data, int bytes, int tag);
  bool test();
  void finished(const Work& work);
  void report_lost();
  void check(int status, std::uint32_t peer, const char* what);
  void fail(std::uint32_t peer);
  bool report_to_daemon();
  void nap(bool watch_daemon);
  void say_farewell();
  [[nodiscard]] bool is_idle() const;

  template <typename Visit>
  void each_peer(Visit visit) {
    for (std::uint32_t step = 1; step < arguments_.nodes; ++step) {
      visit(static_cast<std::uint16_t>((node_ + step) % arguments_.nodes));
    }
  }

  const AgentArguments& arguments_;
  std::byte* const slots_;
  std::uint32_t node_;
  std::vector<Peer> peers_;
  std::vector<MPI_Request> requests_;  // with works_: what runs
  std::vector<Work> works_;
  std::vector<News> news_;
  std::size_t greeted_ = 0;
  std::optional<std::uint32_t> first_gone_;  // the node that left first
  bool failed_ = false;
  bool daemon_left_ = false;
  Us last_moved_ = 0;
};

void MpiProcess::check(int status, std::uint32_t peer, const char* what) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  std::fprintf(stderr, "MPI: %s with node %u: %s\n", what, peer, text.data());
  fail(peer);
}

void MpiProcess::fail(std::uint32_t peer) {
  if (!failed_) news_.push_back({NewsKind::kFailed, 0, static_cast<std::uint16_t>(peer), 0});
  failed_ = true;
}

void MpiProcess::begin(Work work, void* data, int bytes, int tag) {
  work.bytes = static_cast<std::uint32_t>(bytes);
  work.since = now_us();
  int status = MPI_SUCCESS;
  const MPI_Request request = post(work.kind, data, bytes, work.peer, tag, status);
  check(status, work.peer, "transfer");
  if (status != MPI_SUCCESS) return;
  requests_.push_back(request);
  works_.push_back(work);
}

// A message each way: MPI connects at the first one, and this must happen before the deadline for opening the link.
void MpiProcess::greet() {
  each_peer([this](std::uint16_t peer) {
    Peer& other = peers_[peer];
    begin({.kind = WorkKind::kFarewellIn, .peer = peer}, &other.farewell, sizeof other.farewell, kFarewellTag);
    begin({.kind = WorkKind::kGreetingIn, .peer = peer}, &other.greeting, sizeof other.greeting, kGreetingTag);
    begin({.kind = WorkKind::kGreetingOut, .peer = peer}, &node_, sizeof node_, kGreetingTag);
  });
}

void MpiProcess::start(const Command& command) {
  const bool in = command.kind == CommandKind::kReceive;
  std::byte* slot = slots_ + slot_offset(command.peer, in, command.slot, arguments_.slot_bytes);
  const WorkKind out = command.kind == CommandKind::kSendMatched ? WorkKind::kSendMatched : WorkKind::kSend;
  begin({.kind = in ? WorkKind::kReceive : out, .slot = command.slot, .peer = command.peer}, slot,
        static_cast<int>(command.bytes), static_cast<int>(command.tag));
}

// True if there were any.
bool MpiProcess::take_commands() {
  static std::array<Command, kMaxRecords> commands;
  bool any = false;
  while (true) {
    const ssize_t bytes = recv(arguments_.data_fd, commands.data(), sizeof commands, MSG_DONTWAIT);
    if (bytes == 0) daemon_left_ = true;
    if (bytes <= 0) return any;
    any = true;
    for (std::size_t i = 0; i < static_cast<std::size_t>(bytes) / sizeof(Command); ++i) start(commands[i]);
  }
}

void MpiProcess::finished(const Work& work) {
  Peer& peer = peers_[work.peer];
  switch (work.kind) {
    case WorkKind::kSend:
    case WorkKind::kSendMatched: news_.push_back({NewsKind::kSent, work.slot, work.peer, 0}); break;
    case WorkKind::kReceive: news_.push_back({NewsKind::kReceived, work.slot, work.peer, work.bytes}); break;
    case WorkKind::kGreetingIn:
    case WorkKind::kGreetingOut:
      if (--peer.greetings_left > 0) break;
      news_.push_back({NewsKind::kGreeted, 0, work.peer, 0});
      if (++greeted_ + 1 == peers_.size()) {
        int found = 0;
        int* limit = nullptr;
        MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found);
        news_.push_back({NewsKind::kReady, 0, 0, found != 0 ? static_cast<std::uint32_t>(*limit) : 32767U});
      }
      break;
    case WorkKind::kFarewellIn:
      peer.gone_at = now_us();
      if (!first_gone_) first_gone_ = peer.farewell;
      break;
    case WorkKind::kFarewellOut: break;
  }
}

// True if something was finished.
bool MpiProcess::test() {
  const int count = static_cast<int>(requests_.size());
  std::vector<int> indices(requests_.size());
  std::vector<MPI_Status> statuses(requests_.size());
  int done = 0;
  const int result = MPI_Testsome(count, requests_.data(), &done, indices.data(), statuses.data());
  if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) check(result, node_, "progress");
  if (done == MPI_UNDEFINED || done <= 0) return false;
  for (int i = 0; i < done; ++i) {
    const auto& status = statuses[static_cast<std::size_t>(i)];
    const Work work = works_[static_cast<std::size_t>(indices[static_cast<std::size_t>(i)])];
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    const bool error = result == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS;
    if (error) check(status.MPI_ERROR, work.peer, "transfer");
    if (!error && work.kind == WorkKind::kReceive && static_cast<std::uint32_t>(bytes) != work.bytes) {
      std::fprintf(stderr, "node %u sent %d bytes where %u were expected\n", work.peer, bytes, work.bytes);
      fail(work.peer);
    }
    if (!failed_) finished(work);
  }
  for (std::size_t i = works_.size(); i-- > 0;) {
    if (requests_[i] != MPI_REQUEST_NULL) continue;
    requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
    works_.erase(works_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return true;
}

void MpiProcess::report_lost() {
  if (!first_gone_) return;
  const Us now = now_us();
  for (const Work& work : works_) {
    Peer& peer = peers_[work.peer];
    if (peer.gone_at == 0 || peer.told_lost || now - std::max(peer.gone_at, work.since) < kLostAfterUs) continue;
    news_.push_back({NewsKind::kLost, 0, work.peer, peer.farewell});
    peer.told_lost = true;
  }
}

// False when the daemon has left. If the socket is full, news wait here: the daemon may itself wait until this process takes its commands.
bool MpiProcess::report_to_daemon() {
  if (news_.empty()) return true;
  const std::size_t count = std::min(news_.size(), kMaxRecords);
  if (send(arguments_.data_fd, news_.data(), count * sizeof(News), MSG_NOSIGNAL | MSG_DONTWAIT) <= 0)
    return errno == EAGAIN || errno == EINTR;
  news_.erase(news_.begin(), news_.begin() + static_cast<std::ptrdiff_t>(count));
  return true;
}

bool MpiProcess::is_idle() const {
  return std::ranges::all_of(works_, [](const Work& work) { return work.kind == WorkKind::kFarewellIn; });
}

void MpiProcess::nap(bool watch_daemon) {
  const Us quiet = now_us() - last_moved_;
  const Us us = std::clamp(quiet / 16, kShortestNapUs, is_idle() && watch_daemon ? kIdleNapUs : kLongestNapUs);
  const timespec time{us / 1'000'000, us % 1'000'000 * 1000};
  pollfd daemon{watch_daemon ? arguments_.data_fd : -1, POLLIN, 0};
  if (!news_.empty()) daemon.events |= POLLOUT;
  ppoll(&daemon, 1, &time, nullptr);
}

// Tells all peers, and lets MPI carry the messages that are on their way. Peers that are about to end as well say so.
void MpiProcess::say_farewell() {
  std::uint32_t first = first_gone_.value_or(node_);
  each_peer([&](std::uint16_t peer) {
    begin({.kind = WorkKind::kFarewellOut, .peer = peer}, &first, sizeof first, kFarewellTag);
  });
  const Us until = now_us() + kFarewellUs;
  last_moved_ = now_us();
  const auto is_farewell = [](const Work& work) {
    return work.kind == WorkKind::kFarewellIn || work.kind == WorkKind::kFarewellOut;
  };
  while (now_us() < until && std::ranges::any_of(works_, is_farewell)) {
    if (!test()) nap(false);
  }
}

int MpiProcess::run() {
  greet();
  last_moved_ = now_us();
  while (!daemon_left_ && !failed_) {
    const bool commanded = take_commands();
    const bool moved = test();
    report_lost();
    if (!report_to_daemon()) break;
    if (commanded || moved) {
      last_moved_ = now_us();
    } else {
      nap(true);
    }
  }
  report_to_daemon();
  say_farewell();
  return failed_ ? 1 : 0;
}

// Open MPI 4 may print that a connection is broken in a loop that never returns. Its words go to memory of the daemon, so this
// process ends instead, which the daemon reports with the last of them.
void end_when_flooding() {
  constexpr rlimit kMost{kMostWordsBytes, kMostWordsBytes};
  setrlimit(RLIMIT_FSIZE, &kMost);
  signal(SIGXFSZ, [](int) { _exit(1); });
}

}  // namespace

int run_mpi_process(const AgentArguments& arguments) {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // naps are as short as they say
  signal(SIGPIPE, SIG_IGN);          // MPI writes to nodes that have died, which is for their daemons to say
  const std::size_t bytes = slots_bytes(arguments.nodes, arguments.slot_bytes);
  void* slots = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arguments.slots_fd, 0);
  if (slots == MAP_FAILED) {
    std::perror("deft-mpi: cannot map the slots");
    return 1;
  }
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SINGLE, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  end_when_flooding();  // MPI has made its files
  int nodes = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &nodes);
  if (static_cast<std::uint32_t>(nodes) != arguments.nodes) {
    std::fprintf(stderr, "MPI sees %d nodes instead of %u: it does not take PMIx from its parent\n", nodes,
                 arguments.nodes);
    return 1;
  }
  const int status = MpiProcess(arguments, static_cast<std::byte*>(slots)).run();
  // Without MPI_Finalize, which waits for nodes that may be gone.
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace deft::link::mpi_backend
