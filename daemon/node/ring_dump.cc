#include "daemon/node/ring_dump.h"

#include <glog/logging.h>
#include <sys/types.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>

#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostJobs = 16;  // whose folders are kept; a file has at most 4 MB

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

// Keeps `own` and the newest others. The clock of day may have jumped, and so have the times of files.
void remove_oldest(const fs::path& folder, const std::string& own, std::size_t kept) {
  std::vector<std::pair<fs::file_time_type, fs::path>> jobs;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const bool is_own = entry.path().filename() == own;
    if (entry.is_directory(ignored))
      jobs.emplace_back(is_own ? fs::file_time_type::max() : entry.last_write_time(ignored), entry.path());
  }
  if (jobs.size() <= kept) return;
  std::ranges::sort(jobs);
  for (std::size_t i = 0; i + kept < jobs.size(); ++i) fs::remove_all(jobs[i].second, ignored);
}

}  // namespace

std::string trace_file_name(const std::string& job, std::uint32_t node) {
  return plain_name(job) + "-node" + std::to_string(node) + ".trace";
}

RingDump::RingDump(Content content, const std::string& state_folder, std::string reason)
    : content_(std::move(content)),
      until_(content_.recorder->now().next),
      state_folder_(state_folder),
      reason_(std::move(reason)),
      folder_(state_folder + "/traces/" + folder_name(content_.header)),
      path_(folder_ + "/" + trace_file_name(content_.header.job, content_.header.node)),
      thread_([this] { run(); }) {}

void RingDump::run() {
  const LogSubject job = about(content_.header.job);
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
  remove_oldest(traces->path(), folder_name(content_.header), kMostJobs);
  const std::string name = trace_file_name(content_.header.job, content_.header.node), part = name + ".part";
  auto writer = trace::TraceWriter::create(*folder, part, content_.header);
  if (!writer) return tl::unexpected(writer.error());
  for (const auto& group : content_.groups)
    if (auto ok = (*writer)->group(group); !ok) return ok;
  trace::Recorder::Cursor oldest;
  std::vector<trace::TraceRecord> records;
  content_.recorder->read(oldest, records, until_);
  if (auto ok = (*writer)->records(records); !ok) return ok;
  if (auto ok = (*writer)->finish(0); !ok) return ok;
  if (auto ok = folder->let_all_read(part); !ok) return ok;
  return folder->rename(part, name);
}

}  // namespace deft::daemon
