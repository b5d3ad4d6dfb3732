#include "daemon/server/ended_jobs.h"

#include <algorithm>
#include <map>

#include "core/base/text.h"

namespace deft::daemon {

nlohmann::json by_reason(const CountsByReason& counts) {
  nlohmann::json json = nlohmann::json::object();
  for (std::size_t kind = 1; kind < counts.size(); ++kind)
    json[std::string(to_string(static_cast<ErrorKind>(kind)))] = counts[kind];
  return json;
}

void EndedJobs::add(const JobIdentity& job, const Error* cause, TimeUs now_us) {
  ++count_;
  ++(cause == nullptr ? well_ : failed_[static_cast<std::size_t>(cause->kind)]);
  newest_.push_front({.number = count_,
                      .name = job.name,
                      .uid = job.uid,
                      .world = job.world,
                      .reason = cause == nullptr ? "well" : std::string(to_string(cause->kind)),
                      .cause = cause == nullptr ? "" : readable(cause->message(), kMaxCauseBytes),
                      .at_us = now_us});
  if (newest_.size() > kShown) forget_one();
}

// The oldest of the user who has most: nobody pushes out what another one may ask for.
void EndedJobs::forget_one() {
  std::map<uid_t, std::size_t> have;
  for (const Ended& job : newest_) ++have[job.uid];
  const auto most = std::ranges::max_element(have, {}, [](const auto& user) { return user.second; });
  const auto oldest =
      std::find_if(newest_.rbegin(), newest_.rend(), [uid = most->first](const Ended& job) { return job.uid == uid; });
  newest_.erase(std::next(oldest).base());
}

nlohmann::json EndedJobs::newest(TimeUs now_us, std::optional<uid_t> user) const {
  nlohmann::json json = nlohmann::json::array();
  for (const Ended& job : newest_)
    if (!user || job.uid == *user)
      json.push_back({{"number", job.number},
                      {"name", job.name},
                      {"uid", job.uid},
                      {"world", job.world},
                      {"reason", job.reason},
                      {"cause", job.cause},
                      {"ended_s_ago", (now_us - job.at_us) / 1'000'000}});
  return json;
}

nlohmann::json EndedJobs::by_reason() const {
  nlohmann::json json = daemon::by_reason(failed_);
  json["well"] = well_;
  return json;
}

}  // namespace deft::daemon
