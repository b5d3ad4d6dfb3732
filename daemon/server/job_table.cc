#include "daemon/server/job_table.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "core/model/job_names.h"
#include "daemon/base/log_lines.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kPutAwayUs = 20'000;

bool goes_on(const Job& job) { return job.members().state() != JobState::kEnded && job.members().left().empty(); }

bool may_command(uid_t user, const Job& job) { return user == 0 || user == job.members().identity().uid; }

// The job that a command without a name is for. Process sets are parts of a job.
Result<std::shared_ptr<Job>> only_job_of(uid_t user, const std::list<std::shared_ptr<Job>>& jobs) {
  const auto is_here = [&](const std::string& name, uid_t owner) {
    return std::ranges::any_of(jobs, [&](const auto& job) {
      return job->members().identity().name == name && job->members().identity().uid == owner;
    });
  };
  std::vector<std::shared_ptr<Job>> theirs;
  std::ranges::copy_if(jobs, std::back_inserter(theirs), [&](const auto& job) {
    const JobIdentity& id = job->members().identity();
    return goes_on(*job) && may_command(user, *job) && !is_here(model::job_of_set(id.name), id.uid);
  });
  if (theirs.size() == 1) return theirs.front();
  const std::string whose = user == 0 ? "" : " of yours";
  if (theirs.empty())
    return fail(ErrorKind::kInvalid, "no job" + whose + " runs on this daemon",
                "ask the daemon on the node of rank 0, while the job runs");
  return fail(ErrorKind::kInvalid, std::to_string(theirs.size()) + " jobs" + whose + " run on this daemon",
              "name one: deft status lists the jobs");
}

}  // namespace

JobTable::JobTable(JobContext context, std::uint64_t first_incarnation, std::function<void()> on_empty)
    : context_(std::move(context)), on_empty_(std::move(on_empty)), next_incarnation_(first_incarnation) {
  context_.make_incarnation = [this] { return next_incarnation_++; };
  context_.on_ended = [this](const Job& job, const Error* cause) { on_ended(job, cause); };
}

JobTable::~JobTable() { context_.reactor.cancel(timer_); }

// The job of this name of which no worker has left; null: none. Users may give their jobs equal names.
std::shared_ptr<Job> JobTable::find(const std::string& name, uid_t user) const {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& job) {
    const JobIdentity& id = job->members().identity();
    return id.name == name && id.uid == user && goes_on(*job);
  });
  return it == jobs_.end() ? nullptr : *it;
}

bool JobTable::has(const std::string& name, uid_t user) const {
  return find(name, user) != nullptr || find(model::job_of_set(name), user) != nullptr;
}

// A job that has ended counts until its threads have.
Result<void> JobTable::check_room(uid_t user) const {
  const auto is_theirs = [user](const auto& job) { return job->members().identity().uid == user; };
  const auto have = std::ranges::count_if(jobs_, is_theirs) + std::ranges::count_if(ended_, is_theirs);
  if (static_cast<std::uint64_t>(have) < context_.config.user_limit("jobs")) return {};
  return fail(
      ErrorKind::kExhausted,
      "user " + std::to_string(user) + " has " + std::to_string(have) + " jobs on this daemon and may have no more",
      "wait until one has ended, or raise jobs in the option user_limits of deftd");
}

Result<std::shared_ptr<Job>> JobTable::job_for(const WorkerPort& worker) {
  const WorkerHello& attachment = worker.hello();
  if (auto job = find(attachment.job, worker.peer().uid)) return job;
  if (auto ok = check_room(worker.peer().uid); !ok) return tl::unexpected(ok.error());
  auto settings = job_settings(context_.config, attachment.settings);
  if (!settings) return tl::unexpected(settings.error());
  LOG(INFO) << about(attachment.job).rank(attachment.rank).of(worker.peer().uid) << worker.describe()
            << " begins a job of " << attachment.world << " workers, " << attachment.local_size << " here";
  jobs_.push_back(std::make_shared<Job>(context_, worker, std::move(*settings)));
  return jobs_.back();
}

Result<void> JobTable::attach(WorkerPort& worker) {
  const auto job = job_for(worker);
  if (!job) return tl::unexpected(job.error());
  worker.serve((*job)->port());
  Result<void> attached = fail(ErrorKind::kExhausted, "the job could not take this worker");  // if it throws
  run_for((*job)->port(), "joining a job", [&] { attached = (*job)->attach(worker); });
  return attached;
}

JobTable::Delivery JobTable::receive(const Peer& from, const wire::Header& header, std::span<const std::byte> message) {
  const auto find_by = [&](Job::Claim claim, const wire::Received* received) {
    return std::ranges::find_if(jobs_, [&](const auto& job) { return job->claim(from, header, received) == claim; });
  };
  if (find_by(Job::Claim::kFull, nullptr) == jobs_.end()) return Delivery::kUnclaimed;
  const auto received = wire::Received::parse(message);
  if (!received) return Delivery::kUnreadable;
  if (received->is_refusal()) return Delivery::kRefusal;
  auto it = find_by(Job::Claim::kFull, &*received);
  const bool is_anothers = it == jobs_.end();
  if (is_anothers) it = find_by(Job::Claim::kByName, &*received);  // its leader says why it turns them away
  if (it == jobs_.end()) return Delivery::kUnclaimed;
  const auto job = *it;  // it may end by the message
  bool taken = true;
  run_for(job->port(), "a message of another daemon", [&] { taken = job->receive(from, *received); });
  if (!taken) return Delivery::kStranger;
  return is_anothers ? Delivery::kTurnedAway : Delivery::kTaken;
}

void JobTable::peer_mismatched(const Peer& from, const wire::Received& received, const Error& error) {
  const Jobs jobs = jobs_;
  for (const auto& job : jobs)
    run_for(job->port(), "a message of another version", [&] { job->peer_mismatched(from, received.header(), error); });
}

void JobTable::peer_stuck(const Peer& peer) {
  const Jobs jobs = jobs_;
  for (const auto& job : jobs) run_for(job->port(), "a peer that is stuck", [&] { job->peer_stuck(peer); });
}

// The job of this name, if this user may command it.
Result<std::shared_ptr<Job>> JobTable::find_for(uid_t user, const std::string& name) const {
  auto job = find(name, user);
  for (auto it = jobs_.begin(); !job && it != jobs_.end(); ++it) job = find(name, (*it)->members().identity().uid);
  const bool ends = !job && std::ranges::any_of(jobs_, [&](const auto& one) {
    return one->members().identity().name == name && may_command(user, *one);
  });
  if (ends)
    return fail(ErrorKind::kInvalid, "no job '" + name + "' runs on this daemon any more: workers have left it");
  if (!job) return fail(ErrorKind::kInvalid, "no job '" + name + "' runs on this daemon", "deft status lists the jobs");
  if (!may_command(user, *job))
    return fail(ErrorKind::kInvalid,
                "job '" + name + "' belongs to the user with the id " + std::to_string(job->members().identity().uid),
                "run this command as this user, or as root");
  return job;
}

Result<void> JobTable::change_settings(uid_t user, const std::string& name, const sched::SettingsChange& change) {
  const auto job = find_for(user, name);
  if (!job) return tl::unexpected(job.error());
  Result<void> changed = fail(ErrorKind::kInternal, "the job could not take these settings");  // if it throws
  run_for((*job)->port(), "deft set", [&] { changed = (*job)->change_settings(change); });
  return changed;
}

void JobTable::trace(uid_t user, const std::string& name, const wire::TraceOrder& order,
                     const JobRecorder::Told& told) {
  const auto job = name.empty() ? only_job_of(user, jobs_) : find_for(user, name);
  if (!job) return told(tl::unexpected(job.error()));
  bool is_asked = false;
  run_for((*job)->port(), "deft trace", [&] {
    (*job)->trace(order, told);
    is_asked = true;
  });
  if (!is_asked) told(fail(ErrorKind::kInternal, "the job could not be traced"));  // it threw
}

void JobTable::fail_all(const Error& error) {
  const Jobs jobs = jobs_;
  for (const auto& job : jobs)
    run_for(job->port(), "the end of the daemon", [&] {
      // If its workers here have left, other nodes may go on without this one.
      if (job->members().all_left())
        job->end({}, true);
      else
        job->fail(error);
    });
}

void JobTable::on_ended(const Job& job, const Error* cause) {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& one) { return one.get() == &job; });
  if (it == jobs_.end()) return;
  history_.add(job.members().identity(), cause, context_.reactor.now_us());
  ended_.splice(ended_.end(), jobs_, it);
  if (timer_ != 0) return;
  // The timer is for all jobs: it does not belong to this one, whose code runs here.
  run_for({}, "the end of a job", [this] { timer_ = context_.reactor.after(kPutAwayUs, [this] { put_away(); }); });
}

void JobTable::put_away() {
  name_callback("putting ended jobs away");
  timer_ = 0;
  // One in a turn of the event loop: to give a job's memory back takes a while, and many jobs may end together.
  const auto finished = std::ranges::find_if(ended_, [](const auto& job) { return job->threads_finished(); });
  const bool found = finished != ended_.end();
  if (found) ended_.erase(finished);
  if (!ended_.empty()) timer_ = context_.reactor.after(found ? 0 : kPutAwayUs, [this] { put_away(); });
  if (empty()) on_empty_();
}

nlohmann::json JobTable::status(std::optional<uid_t> user) const {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& job : jobs_)
    if (!user || job->members().identity().uid == *user) json.push_back(job->status());
  return json;
}

}  // namespace deft::daemon
