#include "tools/trace_control.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <thread>

#include "core/ipc/wire.h"
#include "tools/daemon_request.h"

namespace deft::tools {
namespace {

namespace fs = std::filesystem;

struct Request {
  ipc::TraceAction action{};
  std::string job;     // empty: the only one
  std::string folder;  // of a start
};

Result<Request> parse(const std::vector<std::string>& words) {
  static const std::map<std::string, ipc::TraceAction> kActions = {
      {"dump", ipc::TraceAction::kDump}, {"start", ipc::TraceAction::kStart}, {"stop", ipc::TraceAction::kStop}};
  const auto action = kActions.find(words.front());
  if (action == kActions.end())
    return fail(ErrorKind::kInvalid, "'" + words.front() + "' is unknown", "see deft trace --help");
  Request request{action->second, "", ""};
  std::size_t next = 1;
  if (request.action == ipc::TraceAction::kStart) {
    if (words.size() < 2) return fail(ErrorKind::kInvalid, "the folder is missing", "deft trace start DIR [JOB]");
    request.folder = fs::absolute(words[next++]).lexically_normal().string();
  }
  if (next < words.size()) request.job = words[next++];
  if (next < words.size())
    return fail(ErrorKind::kInvalid, "'" + words[next] + "' is too much", "see deft trace --help");
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

Result<std::string> ask(const Config& config, const Request& request) {
  const auto now = fs::file_time_type::clock::now() - std::chrono::milliseconds(20);  // file systems round
  ipc::TraceRequest message;
  message.action = request.action;
  auto path = ask_daemon(config, ipc::encode(message, ipc::MessageKind::kTrace, {request.job, request.folder}));
  if (path && request.action == ipc::TraceAction::kDump) await_dump(*path, now);
  return path;
}

}  // namespace

Result<int> control_trace(Arguments arguments) {
  const DaemonArguments given = split_arguments(arguments);
  const auto request = parse(given.words);
  if (!request) return tl::unexpected(request.error());
  const auto config = load_config(given.flags);
  if (!config) return tl::unexpected(config.error());
  const auto path = ask(*config, *request);
  if (!path) return tl::unexpected(path.error());
  std::printf("%s\n", path->c_str());
  return kExitOk;
}

Result<std::string> dump_trace(const Config& config, const std::string& job) {
  return ask(config, {ipc::TraceAction::kDump, job, ""});
}

}  // namespace deft::tools
