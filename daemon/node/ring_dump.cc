#include "daemon/node/ring_dump.h"

#include <glog/logging.h>
#include <sys/types.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostOfUser = 16, kMostJobs = 48;  // whose folders are kept; a file has at most 4 MB
const std::string kMark = ".user-";  // begins the name of a file in each folder, which tells whose job it is

std::string plain_name(const std::string& job) {
  std::string name;
  for (const char c : job) name += std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' ? c : '_';
  return name.substr(0, 100);
}

std::string folder_name(const trace::TraceHeader& header) {
  char incarnation[24];
  std::snprintf(incarnation, sizeof incarnation, "-%016llx", static_cast<unsigned long long>(header.incarnation));
  return plain_name(header.job) + incarnation;
}

// The folder inside, which is made if it is not there. Nobody else may have made it: /tmp is everyone's.
Result<trace::TraceFolder> own_folder(const trace::TraceFolder& in, const std::string& name, mode_t mode) {
  auto folder = in.inside(name, mode);
  if (!folder) return folder;
  if (auto ok = folder->check_own(); !ok) return tl::unexpected(ok.error());
  return folder;
}

// Likewise, and it has this mode, whatever the umask is or was: users of a shared daemon read the traces of their jobs there.
Result<trace::TraceFolder> open_folder(const trace::TraceFolder& in, const std::string& name, mode_t mode) {
  auto folder = own_folder(in, name, mode);
  if (!folder) return folder;
  if (auto ok = folder->set_mode(mode); !ok) return tl::unexpected(ok.error());
  return folder;
}

// A folder of a job's dumps.
struct KeptJob {
  fs::file_time_type written;
  fs::path path;
  std::string mark;  // of its user; empty: an older daemon has left it
};

// The oldest first, and last the folder `own`. The clock of day may have jumped, and so have the times of files.
std::vector<KeptJob> kept_jobs(const fs::path& traces, const std::string& own) {
  std::vector<KeptJob> jobs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(traces, ignored)) {
    if (!entry.is_directory(ignored)) continue;
    KeptJob job{entry.last_write_time(ignored), entry.path(), {}};
    for (const auto& file : fs::directory_iterator(job.path, ignored))
      if (file.path().filename().string().starts_with(kMark)) job.mark = file.path().filename().string();
    jobs.push_back(std::move(job));
  }
  std::ranges::sort(jobs, [&own](const KeptJob& a, const KeptJob& b) {
    const bool a_is_own = a.path.filename() == own, b_is_own = b.path.filename() == own;
    return a_is_own == b_is_own ? a.written < b.written : b_is_own;
  });
  return jobs;
}

// True if the last of the jobs would be one too many within a minute for its user, who fails jobs in a loop perhaps.
bool is_flood(const std::vector<KeptJob>& jobs) {
  const KeptJob& own = jobs.back();
  const auto is_recent = [&own](const KeptJob& job) {
    return job.mark == own.mark && job.written <= own.written && own.written - job.written < std::chrono::minutes(1);
  };
  return static_cast<std::size_t>(std::ranges::count_if(jobs, is_recent)) > kMostOfUser;
}

// While there are too many, the oldest of whoever has most goes: no user can take the place of others.
void remove_oldest(std::vector<KeptJob> jobs) {
  std::map<std::string, std::size_t> count;
  for (const KeptJob& job : jobs) ++count[job.mark];
  while (!jobs.empty()) {
    const std::size_t most = std::ranges::max_element(count, {}, [](const auto& one) { return one.second; })->second;
    if (most <= kMostOfUser && jobs.size() <= kMostJobs) return;
    const auto oldest = std::ranges::find_if(jobs, [&](const KeptJob& job) { return count[job.mark] == most; });
    std::error_code ignored;
    fs::remove_all(oldest->path, ignored);
    --count[oldest->mark];
    jobs.erase(oldest);
  }
}

// Makes room for the dumps of a job of `user`, whose folder is there. An error: the user has had too many.
Result<void> make_room(const trace::TraceFolder& traces, const trace::TraceFolder& folder, uid_t user) {
  if (auto marked = folder.create(kMark + std::to_string(user)); !marked) return tl::unexpected(marked.error());
  const fs::path path(folder.path());
  auto jobs = kept_jobs(traces.path(), path.filename().string());
  if (jobs.empty() || !is_flood(jobs)) {
    remove_oldest(std::move(jobs));
    return {};
  }
  std::error_code ignored;
  fs::remove_all(path, ignored);
  return fail(
      ErrorKind::kExhausted,
      "user " + std::to_string(user) + " has had " + std::to_string(kMostOfUser) + " traces kept within a minute",
      "wait for a minute");
}

// The answers of the leader's clock that are not among the records.
std::vector<trace::TraceRecord> without(const std::vector<trace::TraceRecord>& records,
                                        std::vector<trace::TraceRecord> clocks) {
  std::set<TimeUs> known;
  for (const auto& record : records)
    if (record.kind() == trace::TraceKind::kClock) known.insert(record.begin_us());
  std::erase_if(clocks, [&known](const auto& clock) { return known.contains(clock.begin_us()); });
  return clocks;
}

}  // namespace

std::string trace_file_name(const std::string& job, std::uint32_t node) {
  return plain_name(job) + "-node" + std::to_string(node) + ".trace";
}

RingDump::RingDump(Content content, const std::string& state_folder, std::string reason)
    : content_(std::move(content)),
      held_(content_.recorder->held()),
      until_(content_.recorder->now().next),
      clocks_(content_.recorder->clocks()),
      state_folder_(state_folder),
      reason_(std::move(reason)),
      folder_(state_folder + "/traces/" + folder_name(content_.header)),
      path_(folder_ + "/" + trace_file_name(content_.header.job, content_.header.node)),
      thread_([this] { run(); }) {}

void RingDump::run() {
  const LogSubject job = about(content_.header.job).of(content_.user);
  try {
    if (const auto written = write(); written)
      LOG(INFO) << job << reason_ << ": the newest events are in " << path_;
    else
      LOG(WARNING) << job << reason_ << ", and its newest events cannot be kept: " << written.error().message();
  } catch (const std::exception& error) {  // jobs fail also when memory runs out
    LOG(WARNING) << job << reason_ << ", and its newest events cannot be kept: " << error.what();
  }
  ended_ = true;
}

// The file appears when it is complete.
Result<void> RingDump::write() {
  fs::path state(state_folder_);
  if (!state.has_filename()) state = state.parent_path();  // it ends with a slash
  const auto parent = trace::TraceFolder::open(state.parent_path().string(), trace::TraceFolder::Make::kAll);
  if (!parent) return tl::unexpected(parent.error());
  const auto own = own_folder(*parent, state.filename().string(), 0755);
  if (!own) return tl::unexpected(own.error());
  const auto traces = open_folder(*own, "traces", 0711);
  if (!traces) return tl::unexpected(traces.error());
  const auto folder = open_folder(*traces, folder_name(content_.header), 0755);
  if (!folder) return tl::unexpected(folder.error());
  if (auto ok = make_room(*traces, *folder, content_.user); !ok) return ok;
  const std::string name = trace_file_name(content_.header.job, content_.header.node), part = name + ".part";
  auto writer = trace::TraceWriter::create(*folder, part, content_.header);
  if (!writer) return tl::unexpected(writer.error());
  for (const auto& group : content_.groups)
    if (auto ok = (*writer)->group(group); !ok) return ok;
  trace::Recorder::Cursor cursor = held_;
  std::vector<trace::TraceRecord> records;
  content_.recorder->read(cursor, records, until_);
  if (auto ok = (*writer)->records(without(records, clocks_)); !ok) return ok;
  if (auto ok = (*writer)->records(records); !ok) return ok;
  if (auto ok = (*writer)->finish(cursor.lost); !ok) return ok;
  if (auto ok = folder->let_all_read(part); !ok) return ok;
  return folder->rename(part, name);
}

}  // namespace deft::daemon
