#include "tools/trace_control.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <thread>

#include "core/base/clock.h"
#include "core/base/numbers.h"
#include "core/ipc/wire.h"
#include "core/trace/trace_file.h"
#include "tools/daemon_request.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;

struct Request {
  ipc::TraceAction action{};
  std::string job;     // empty: the only one
  std::string folder;  // of a start
  std::uint32_t steps = 0;
};

// Removes `--steps N` from `flags`. 0: it is not there.
Result<std::uint32_t> take_steps(std::vector<std::string>& flags) {
  const auto text = take_value(flags, "--steps");
  if (!text) return 0;
  const std::uint32_t steps = parse_whole<std::uint32_t>(*text).value_or(0);
  if (steps == 0) return fail(ErrorKind::kInvalid, "--steps is '" + *text + "'", "give a number of steps: --steps 20");
  return steps;
}

Result<Request> parse(const std::vector<std::string>& words, std::uint32_t steps) {
  static const std::map<std::string, ipc::TraceAction> kActions = {
      {"dump", ipc::TraceAction::kDump}, {"start", ipc::TraceAction::kStart}, {"stop", ipc::TraceAction::kStop}};
  const auto action = kActions.find(words.front());
  if (action == kActions.end())
    return fail(ErrorKind::kInvalid, "'" + words.front() + "' is unknown", "see deft trace --help");
  Request request{action->second, "", "", steps};
  std::size_t next = 1;
  if (request.action == ipc::TraceAction::kStart) {
    if (words.size() < 2) return fail(ErrorKind::kInvalid, "the folder is missing", "deft trace start DIR [JOB]");
    request.folder = fs::absolute(words[next++]).lexically_normal().string();
  }
  if (next < words.size()) request.job = words[next++];
  if (next < words.size())
    return fail(ErrorKind::kInvalid, "'" + words[next] + "' is too much", "see deft trace --help");
  if (steps > 0 && request.action != ipc::TraceAction::kStart)
    return fail(ErrorKind::kInvalid, "--steps is for deft trace start", "see deft trace --help");
  return request;
}

// A dump appears when it is complete. It may be in a folder that this user cannot see.
void await_dump(const std::string& path, fs::file_time_type since) {
  constexpr int kLooks = 500;
  constexpr auto kPause = std::chrono::milliseconds(20);
  std::error_code hidden;
  for (int look = 0; look < kLooks; ++look) {
    const auto written = fs::last_write_time(path, hidden);
    if (!hidden && written >= since) return;
    if (hidden == std::errc::permission_denied) return;
    std::this_thread::sleep_for(kPause);
  }
  std::fprintf(stderr, "deft trace: %s is not there yet: see the log of the daemon\n", path.c_str());
}

// The file of another node in this folder that is still that of an earlier dump; empty: there is none.
std::string stale_dump(const fs::path& folder, fs::file_time_type since) {
  std::error_code hidden;
  for (const auto& entry : fs::directory_iterator(folder, hidden)) {
    const auto written = entry.path().extension() == ".trace" ? entry.last_write_time(hidden) : since;
    if (!hidden && written < since) return entry.path().string();
  }
  return {};
}

std::size_t dumps_in(const fs::path& folder) {
  std::error_code hidden;
  std::size_t count = 0;
  for (const auto& entry : fs::directory_iterator(folder, hidden))
    count += entry.path().extension() == ".trace" ? 1 : 0;
  return count;
}

// Other nodes write into the same folder if they share a disk. One that has not written before comes soon or not at all.
void await_other_dumps(const std::string& path, fs::file_time_type since) {
  constexpr TimeUs kForNewOnesUs = 1'000'000, kForOldOnesUs = 10'000'000;
  constexpr auto kPause = std::chrono::milliseconds(20);
  const auto own = trace::glance_at_trace(path);
  if (!own) return;  // this user cannot see it
  const fs::path folder = fs::path(path).parent_path();
  const TimeUs begin_us = MonotonicClock::now();
  while (true) {
    const TimeUs waited_us = MonotonicClock::now() - begin_us;
    const std::string stale = stale_dump(folder, since);
    const bool may_come = dumps_in(folder) < own->header.nodes && waited_us < kForNewOnesUs;
    if (stale.empty() && !may_come) return;
    if (waited_us >= kForOldOnesUs) {
      std::fprintf(stderr, "deft trace: %s is of an earlier dump: look into the log of its node's daemon\n",
                   stale.c_str());
      return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

// The daemons finish their files in the background. Those that this user cannot see are not waited for.
Result<void> await_files(const std::string& path) {
  constexpr TimeUs kPatienceUs = 30'000'000;
  constexpr auto kPause = std::chrono::milliseconds(20);
  const TimeUs deadline_us = MonotonicClock::now() + kPatienceUs;
  while (true) {
    const auto unfinished = trace::unfinished_trace(path);
    if (!unfinished)
      std::fprintf(stderr, "deft trace: its daemon may still write: %s\n", unfinished.error().message().c_str());
    if (!unfinished || unfinished->empty()) return {};
    if (MonotonicClock::now() > deadline_us)
      return fail(ErrorKind::kTimeout, "the trace is stopped, and 30 s later " + *unfinished + " is not complete",
                  "look into the log of that node's daemon: its disk may be full or slow");
    std::this_thread::sleep_for(kPause);
  }
}

// File systems round.
fs::file_time_type just_now() { return fs::file_time_type::clock::now() - std::chrono::milliseconds(20); }

Result<std::string> ask(const Config& config, const Request& request) {
  const auto now = just_now();
  ipc::TraceRequest message;
  message.action = request.action;
  message.steps = request.steps;
  auto path = ask_daemon(config, ipc::encode(message, ipc::MessageKind::kTrace, {request.job, request.folder}));
  if (path && request.action == ipc::TraceAction::kDump) await_dump(*path, now);
  return path;
}

}  // namespace

Result<int> control_trace(Arguments arguments) {
  DaemonArguments given = split_arguments(arguments);
  const auto steps = take_steps(given.flags);
  if (!steps) return tl::unexpected(steps.error());
  const auto request = parse(given.words, *steps);
  if (!request) return tl::unexpected(request.error());
  const auto config = load_config(given.flags);
  if (!config) return tl::unexpected(config.error());
  const auto path = ask(*config, *request);
  if (!path) return tl::unexpected(path.error());
  std::printf("%s\n", path->c_str());
  if (request->action == ipc::TraceAction::kStop)
    if (auto ok = await_files(*path); !ok) return tl::unexpected(ok.error());
  return kExitOk;
}

Result<std::string> dump_trace(const Config& config, const std::string& job) {
  const auto since = just_now();
  auto path = ask(config, {.action = ipc::TraceAction::kDump, .job = job, .folder = ""});
  if (path) await_other_dumps(*path, since);
  return path;
}

}  // namespace deft::tools
