#include "daemon/server/job_table.h"

#include <glog/logging.h>

#include <algorithm>

namespace deft::daemon {
namespace {

constexpr TimeUs kPutAwayUs = 20'000;

}  // namespace

JobTable::JobTable(JobContext context, std::uint64_t first_incarnation, std::function<void()> on_empty)
    : context_(std::move(context)), on_empty_(std::move(on_empty)), next_incarnation_(first_incarnation) {
  context_.make_incarnation = [this] { return next_incarnation_++; };
  context_.on_ended = [this](const Job& job) { on_ended(job); };
}

JobTable::~JobTable() { context_.reactor.cancel(timer_); }

// The job of this name of which no worker has left; null: none.
std::shared_ptr<Job> JobTable::find(const std::string& name) const {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& job) {
    const Membership& members = job->members();
    return members.identity().name == name && members.state() != JobState::kEnded && members.left().empty();
  });
  return it == jobs_.end() ? nullptr : *it;
}

Result<std::shared_ptr<Job>> JobTable::job_for(const WorkerPort& worker) {
  const WorkerHello& attachment = worker.hello();
  if (auto job = find(attachment.job)) return job;
  auto settings = job_settings(context_.config, attachment.settings);
  if (!settings) return tl::unexpected(settings.error());
  LOG(INFO) << "[" << attachment.job << "] " << worker.describe() << " begins a job of " << attachment.world
            << " workers, " << attachment.local_size << " here";
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

JobTable::Delivery JobTable::receive(const Peer& from, const wire::Received& received) {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& job) { return job->accepts(from, received); });
  if (it == jobs_.end()) return Delivery::kUnclaimed;
  const auto job = *it;  // it may end by the message
  bool taken = true;
  run_for(job->port(), "a message of another daemon", [&] { taken = job->receive(from, received); });
  return taken ? Delivery::kTaken : Delivery::kStranger;
}

void JobTable::peer_mismatched(const Peer& from, const wire::Received& received, const Error& error) {
  const Jobs jobs = jobs_;
  for (const auto& job : jobs)
    run_for(job->port(), "a message of another version", [&] { job->peer_mismatched(from, received.header(), error); });
}

Result<void> JobTable::set_policy(uid_t user, const std::string& name, const std::string& policy) {
  const auto job = find(name);
  if (!job) return fail(ErrorKind::kInvalid, "no job '" + name + "' runs on this daemon", "deft status lists the jobs");
  const uid_t owner = job->members().identity().uid;
  if (user != 0 && user != owner)
    return fail(ErrorKind::kInvalid, "job '" + name + "' belongs to the user with the id " + std::to_string(owner),
                "run deft set as this user, or as root");
  Result<void> set = fail(ErrorKind::kInternal, "the job could not take this policy");  // if it throws
  run_for(job->port(), "deft set", [&] { set = job->set_policy(policy); });
  return set;
}

void JobTable::fail_all(const Error& error) {
  const Jobs jobs = jobs_;
  for (const auto& job : jobs) run_for(job->port(), "the end of the daemon", [&] { job->fail(error); });
}

void JobTable::on_ended(const Job& job) {
  const auto it = std::ranges::find_if(jobs_, [&](const auto& one) { return one.get() == &job; });
  if (it == jobs_.end()) return;
  ++served_;
  ended_.splice(ended_.end(), jobs_, it);
  if (timer_ != 0) return;
  // The timer is for all jobs: it does not belong to this one, whose code runs here.
  run_for({}, "the end of a job", [this] { timer_ = context_.reactor.after(kPutAwayUs, [this] { put_away(); }); });
}

void JobTable::put_away() {
  timer_ = 0;
  std::erase_if(ended_, [](const auto& job) { return job->threads_finished(); });
  if (!ended_.empty()) timer_ = context_.reactor.after(kPutAwayUs, [this] { put_away(); });
  if (empty()) on_empty_();
}

nlohmann::json JobTable::status() const {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& job : jobs_) json.push_back(job->status());
  return json;
}

}  // namespace deft::daemon
