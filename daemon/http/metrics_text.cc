#include "daemon/http/metrics_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <initializer_list>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace deft::daemon {
namespace {

using Json = nlohmann::json;
using Labels = std::vector<std::pair<std::string_view, std::string>>;

enum class MetricKind { kCounter, kGauge, kHistogram };

// The objects of the status that a family has a sample of.
enum class Subject {
  kDaemon,
  kReason,
  kCallback,
  kRefusal,
  kUser,
  kEndedJob,
  kJob,
  kJobInfo,
  kGroup,
  kWorker,
  kLink,
  kNode,
  kPlan,
  kPlanInfo
};

struct Family {
  std::string_view name;
  MetricKind kind;
  Subject subject;
  std::string_view place;  // in the object of its subject; a list counts its elements, a text is 1
  double divisor;          // to the unit of the name
  std::string_view help;
};

using enum MetricKind;
using enum Subject;

constexpr double kMs = 1e3, kUs = 1e6;

// clang-format off
constexpr std::array kFamilies = {
    Family{"deft_build_info", kGauge, kDaemon, "/version", 1, "1; the label is the version of the daemon."},
    Family{"deft_up", kGauge, kDaemon, "/reactor_answers", 1, "1: the daemon's event loop answered in time. 0: what follows is old."},
    Family{"deft_status_age_seconds", kGauge, kDaemon, "/status_age_us", kUs, "How old these numbers are."},
    Family{"deft_uptime_seconds", kGauge, kDaemon, "/uptime_s", 1, "Since the daemon started."},
    Family{"deft_takes_jobs", kGauge, kDaemon, "/takes_jobs", 1, "1: new jobs are taken. 0: the daemon drains."},
    Family{"deft_sessions", kGauge, kDaemon, "/sessions", 1, "Clients on the unix socket."},
    Family{"deft_jobs", kGauge, kDaemon, "/jobs", 1, "Jobs that have not ended."},
    Family{"deft_jobs_closing", kGauge, kDaemon, "/jobs_closing", 1, "Jobs that have ended, and of which a thread of a link or of a trace has not. It hangs if this stays."},
    Family{"deft_jobs_ended_total", kCounter, kReason, "/jobs_ended", 1, "Jobs that have ended, by the kind of their cause."},
    Family{"deft_ended_job_age_seconds", kGauge, kEndedJob, "/ended_s_ago", 1, "Since a job failed, if it is one of the 20 newest that have ended. number: of all that ended here. cause: the error of its workers."},
    Family{"deft_sessions_lost_total", kCounter, kReason, "/sessions_lost", 1, "Workers that were lost or dropped, by reason. violation: it broke the protocol."},
    Family{"deft_accept_failures_total", kCounter, kDaemon, "/accept_failures", 1, "Times that no client could be taken, for want of descriptors."},
    Family{"deft_callbacks_failed_total", kCounter, kDaemon, "/callbacks_failed", 1, "Callbacks that threw: each failed one session or job."},
    Family{"deft_control_messages_rejected_total", kCounter, kDaemon, "/control_messages_rejected", 1, "Messages of other daemons that were wrong, of another version, or of a stranger."},
    Family{"deft_control_messages_unclaimed_total", kCounter, kDaemon, "/control_messages_unclaimed", 1, "Messages of other daemons for jobs that do not run here."},
    Family{"deft_control_messages_dropped_total", kCounter, kReason, "/control_drops", 1, "What came to the control port and was dropped, by reason. key and handshake: connections without the key, or of no ZeroMQ. endless: connections that were ended because a message had no end."},
    Family{"deft_clients_refused_total", kCounter, kRefusal, "/count", 1, "Clients on the unix socket that were refused or dropped, by user and reason."},
    Family{"deft_ring_overflows_total", kCounter, kDaemon, "/rings/overflows", 1, "Completions that found a worker's ring full, and waited in the daemon."},
    Family{"deft_ring_drops_total", kCounter, kReason, "/rings/drops", 1, "Workers that were dropped because of their rings, by reason. unread: too many completions waited. Also in deft_clients_refused_total, by user."},
    Family{"deft_link_strangers_total", kCounter, kReason, "/link_strangers", 1, "Connections to the ports of gloo links that did not prove themselves, by reason."},
    Family{"deft_server_links", kGauge, kDaemon, "/server/links", 1, "Links that a parameter server serves."},
    Family{"deft_server_drops_total", kCounter, kReason, "/server/drops", 1, "Messages and connections that a parameter server dropped, by reason. endless: connections that were ended because a message had no end."},
    Family{"deft_arena_bytes", kGauge, kDaemon, "/memory_bytes", 1, "Shared memory given to workers."},
    Family{"deft_arena_limit_bytes", kGauge, kDaemon, "/memory_limit_bytes", 1, "Most of it (option memory_limit)."},
    Family{"deft_user_memory_bytes", kGauge, kUser, "/memory", 1, "Shared memory of a user's workers. A user who has nothing of the daemon has no series."},
    Family{"deft_user_sessions", kGauge, kUser, "/sessions", 1, "Clients of a user on the unix socket."},
    Family{"deft_user_descriptors", kGauge, kUser, "/descriptors", 1, "Descriptors of the daemon that serve a user."},
    Family{"deft_user_threads", kGauge, kUser, "/threads", 1, "Threads that work for a user: one for each link that the daemon runs, and the threads of work that may block. Threads inside gloo and ZeroMQ are in process_threads alone."},
    Family{"deft_user_operations", kGauge, kUser, "/operations", 1, "Collectives under way of a user."},
    Family{"deft_user_names_bytes", kGauge, kUser, "/names", 1, "Names of a user's tensors."},
    Family{"deft_user_store_bytes", kGauge, kUser, "/store", 1, "What a user has put into the stores of jobs."},
    Family{"deft_reactor_turn_seconds", kHistogram, kDaemon, "/reactor/turns", kUs, "Turns of the event loop. An event waits for at most one."},
    Family{"deft_reactor_longest_callback_seconds", kGauge, kDaemon, "/reactor/longest_callback_of_late/us", kUs, "Longest callback of the last one or two minutes."},
    Family{"deft_reactor_callback_seconds", kGauge, kCallback, "/reactor/longest_by_name", kUs, "Longest callback of each name since the daemon started, of those that took a millisecond or more."},
    Family{"process_cpu_seconds_total", kCounter, kDaemon, "/process/cpu_seconds", 1, "CPU time of the daemon."},
    Family{"process_resident_memory_bytes", kGauge, kDaemon, "/process/resident_memory_bytes", 1, "Memory of the daemon, shared memory that it has touched included."},
    Family{"process_virtual_memory_bytes", kGauge, kDaemon, "/process/virtual_memory_bytes", 1, "Address space of the daemon."},
    Family{"process_open_fds", kGauge, kDaemon, "/process/open_fds", 1, "Open descriptors."},
    Family{"process_max_fds", kGauge, kDaemon, "/process/max_fds", 1, "Most descriptors."},
    Family{"process_threads", kGauge, kDaemon, "/process/threads", 1, "Threads."},

    Family{"deft_job_info", kGauge, kJobInfo, "/name", 1, "1; the labels say what the job is."},
    Family{"deft_job_world", kGauge, kJob, "/world", 1, "Workers of the job on all nodes."},
    Family{"deft_job_stalls", kGauge, kJob, "/stalls", 1, "Workers that others wait for."},
    Family{"deft_job_launches_total", kCounter, kJob, "/leader/launches", 1, "Parts and collectives that the leader has ordered. On the leader's node."},
    Family{"deft_job_outstanding_launches", kGauge, kJob, "/leader/outstanding", 1, "Those that have not ended on the leader's node."},
    Family{"deft_job_leader_silent_seconds", kGauge, kJob, "/leader_silent_ms", kMs, "Since the leader was heard. On the other nodes."},

    Family{"deft_group_updates_total", kCounter, kGroup, "/step", 1, "Updates whose gradients are reduced completely."},
    Family{"deft_group_bytes", kGauge, kGroup, "/bytes", 1, "Gradients of one update."},

    Family{"deft_worker_attached", kGauge, kWorker, "/attached", 1, "0: the worker is gone."},
    Family{"deft_worker_steps_total", kCounter, kWorker, "/steps", 1, "Steps that the worker has ended."},
    Family{"deft_worker_compute_seconds", kGauge, kWorker, "/compute_us", kUs, "A usual step of the worker, without waiting."},
    Family{"deft_worker_waited_seconds_total", kCounter, kWorker, "/waited_us", kUs, "Exposed communication: time in which the worker computed nothing and waited for gradients."},

    Family{"deft_link_open", kGauge, kLink, "/open", 1, "1: the link is open."},
    Family{"deft_link_lost", kGauge, kLink, "/is_lost", 1, "1: the link was lost, and another one stands in."},
    Family{"deft_link_parts_total", kCounter, kLink, "/parts", 1, "Parts and collectives that were reduced."},
    Family{"deft_link_merged_parts_total", kCounter, kLink, "/merged_parts", 1, "Those that went on over several buckets."},
    Family{"deft_link_replayed_parts_total", kCounter, kLink, "/run_again", 1, "Those that were run again because the link was lost."},
    Family{"deft_link_bytes_total", kCounter, kLink, "/bytes", 1, "Data that were reduced."},
    Family{"deft_link_wire_bytes_total", kCounter, kLink, "/wire_bytes", 1, "What they were encoded to. By deft_link_bytes_total: the ratio of the codec."},
    Family{"deft_link_codec_error", kGauge, kLink, "/codec_error", 1, "The square of what encodings left out, over the square of their input: measured now and then on this node. Codecs with error feedback only."},
    Family{"deft_link_busy_seconds_total", kCounter, kLink, "/busy_us", kUs, "Time in which the link worked."},
    Family{"deft_link_retransmits_total", kCounter, kLink, "/connections/resent_packets", 1, "Packets that this node's kernel sent again: gloo and ps. The sockets of other links are not in the daemon."},
    Family{"deft_link_acknowledged_bytes_total", kCounter, kLink, "/connections/sent_bytes", 1, "What the kernels of other nodes have acknowledged: gloo."},
    Family{"deft_link_round_trip_seconds", kGauge, kLink, "/connections/least_rtt_us", kUs, "Least round trip to a node or server that the kernel has seen: gloo and ps."},
    Family{"deft_link_waiting_parts", kGauge, kLink, "/waiting", 1, "Launches that wait for their turn or their data."},
    Family{"deft_link_running_parts", kGauge, kLink, "/running", 1, "Launches that the link works on."},
    Family{"deft_link_kept_parts", kGauge, kLink, "/kept", 1, "Launches that are kept until all nodes have finished them."},
    Family{"deft_link_transfer_seconds", kHistogram, kLink, "/transfers", kUs, "Time of a transfer on the link."},

    Family{"deft_node_silent_seconds", kGauge, kNode, "/silent_ms", kMs, "Since the leader heard this node. On the leader's node."},
    Family{"deft_node_compute_seconds", kGauge, kNode, "/step_us", kUs, "A usual step of the node's slowest worker, without waiting. On the leader's node."},

    Family{"deft_plan_info", kGauge, kPlanInfo, "/reason", 1, "1; the label says why there is this plan. On the leader's node, with the policy knapsack, as are all of these."},
    Family{"deft_plan_epoch", kGauge, kPlan, "/epoch", 1, "How many plans there have been."},
    Family{"deft_plan_updates_per_step", kGauge, kPlan, "/updates_per_step", 1, "1: no steps are merged."},
    Family{"deft_plan_staleness_steps", kGauge, kPlan, "/max_staleness_steps", 1, "By how many steps an update is late at most."},
    Family{"deft_plan_stale_ratio", kGauge, kPlan, "/stale_share", 1, "Share of the gradients that the plan applies late or merged."},
    Family{"deft_plan_merged_steps", kGauge, kPlan, "/max_merged_steps", 1, "Most steps that an update merges."},
    Family{"deft_plan_step_seconds", kGauge, kPlan, "/step_us", kUs, "What the plan promises for a step."},
    Family{"deft_plan_codec_error", kGauge, kPlan, "/codec_error", 1, "Relative error of the plan's codecs."},
};
// clang-format on

// The family's place holds a number for each value of its label.
bool is_map(Subject subject) { return subject == kReason || subject == kCallback; }

std::string_view type_of(MetricKind kind) {
  return kind == kCounter ? "counter" : kind == kGauge ? "gauge" : "histogram";
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

std::string text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? "" : text_of(*found);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

std::string written(double value) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

void add_sample(std::string& out, std::string_view name, const Labels& labels, double value) {
  out += name;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    out += i == 0 ? "{" : ",";
    out.append(labels[i].first).append("=\"").append(escaped(labels[i].second)).append("\"");
  }
  out.append(labels.empty() ? " " : "} ").append(written(value)).append("\n");
}

void add_histogram(std::string& out, const Family& family, Labels labels, const Json& histogram) {
  const std::string name(family.name);
  std::vector<std::pair<double, double>> bounds;
  for (const auto& [bound, count] : histogram["at_most_us"].items())
    bounds.emplace_back(std::stod(bound) / family.divisor, count.get<double>());
  std::ranges::sort(bounds);
  const auto count = histogram["count"].get<double>();
  const Labels plain = labels;
  labels.emplace_back("le", "");
  for (const auto& [bound, below] : bounds) {
    labels.back().second = written(bound);
    add_sample(out, name + "_bucket", labels, below);
  }
  labels.back().second = "+Inf";
  add_sample(out, name + "_bucket", labels, count);
  add_sample(out, name + "_sum", plain, histogram["sum_us"].get<double>() / family.divisor);
  add_sample(out, name + "_count", plain, count);
}

void add_value(std::string& out, const Family& family, Labels labels, const Json& value) {
  if (family.name == "deft_build_info") labels = {{"version", text_of(value)}};
  if (family.kind == kHistogram && value.is_object()) return add_histogram(out, family, std::move(labels), value);
  double number = 1;  // a text
  if (value.is_number()) number = value.get<double>() / family.divisor;
  if (value.is_boolean()) number = value.get<bool>() ? 1 : 0;
  if (value.is_array()) number = static_cast<double>(value.size());
  if (!value.is_object() && !value.is_null()) add_sample(out, family.name, labels, number);
}

using Visit = std::function<void(const Json& object, const Labels& labels)>;

const Json& list_at(const Json& object, const char* place) {
  static const Json kNone = Json::array();
  const Json::json_pointer pointer(place);
  return object.contains(pointer) && object[pointer].is_array() ? object[pointer] : kNone;
}

Labels with(Labels labels, std::initializer_list<std::pair<std::string_view, std::string>> more) {
  labels.insert(labels.end(), more);
  return labels;
}

void visit_plans(const Json& job, Subject subject, const Labels& owner, const Visit& visit) {
  std::map<std::string, Json> newest;  // of each group
  for (const auto& plan : list_at(job, "/leader/plans")) newest[text_at(plan, "group")] = plan;
  for (const auto& [group, plan] : newest) {
    Labels labels = with(owner, {{"group", group}});
    if (subject == kPlanInfo) labels.emplace_back("reason", text_at(plan, "reason"));
    visit(plan, labels);
  }
}

void visit_job(const Json& job, Subject subject, const Visit& visit) {
  const Labels owner{{"job", text_at(job, "name")}, {"user", text_at(job, "uid")}};  // two users may use one name
  if (subject == kJob) return visit(job, owner);
  if (subject == kJobInfo)
    return visit(job, with(owner, {{"state", text_at(job, "state")},
                                   {"policy", text_at(job, "policy")},
                                   {"compression", text_at(job, "compression")},
                                   {"leads", text_at(job, "leads")}}));
  if (subject == kGroup)
    for (const auto& group : list_at(job, "/groups")) visit(group, with(owner, {{"group", text_at(group, "id")}}));
  if (subject == kWorker)
    for (const auto& worker : list_at(job, "/workers")) visit(worker, with(owner, {{"rank", text_at(worker, "rank")}}));
  if (subject == kLink)
    for (const auto& link : list_at(job, "/links")) visit(link, with(owner, {{"link", text_at(link, "name")}}));
  std::size_t node = 0;
  if (subject == kNode)
    for (const auto& one : list_at(job, "/leader/nodes"))
      visit(one, with(owner, {{"node", std::to_string(node++)}, {"host", text_at(one, "host")}}));
  if (subject == kPlan || subject == kPlanInfo) visit_plans(job, subject, owner, visit);
}

// A number for each value of `label`.
void visit_map(const Json& status, std::string_view place, std::string_view label, const Visit& visit) {
  const Json::json_pointer pointer{std::string(place)};
  if (!status.contains(pointer)) return;
  for (const auto& [value, number] : status[pointer].items()) visit(number, {{label, value}});
}

// Objects whose members are labels: the label and the member.
void visit_list(const Json& status, const char* place,
                std::initializer_list<std::pair<std::string_view, const char*>> labels, const Visit& visit) {
  for (const auto& one : list_at(status, place)) {
    Labels found;
    for (const auto& [label, member] : labels) found.emplace_back(label, text_at(one, member));
    visit(one, found);
  }
}

// A job whose workers are leaving and its user's next one may have one name; series must differ, so the newest counts.
std::vector<const Json*> jobs_of_different_names(const Json& status) {
  std::map<std::pair<std::string, std::string>, const Json*> newest;
  for (const auto& job : list_at(status, "/jobs")) newest[{text_at(job, "name"), text_at(job, "uid")}] = &job;
  std::vector<const Json*> jobs;
  for (const auto& [name, job] : newest) jobs.push_back(job);
  return jobs;
}

void visit_objects(const Json& status, const Family& family, const Visit& visit) {
  switch (family.subject) {
    case kDaemon: return visit(status, {});
    case kReason: return visit_map(status, family.place, "reason", visit);
    case kCallback: return visit_map(status, family.place, "callback", visit);
    case kRefusal: return visit_list(status, "/refusals", {{"user", "user"}, {"reason", "reason"}}, visit);
    case kUser: return visit_list(status, "/users", {{"user", "user"}}, visit);
    case kEndedJob:
      return visit_list(
          status, "/ended_jobs",
          {{"job", "name"}, {"user", "uid"}, {"number", "number"}, {"reason", "reason"}, {"cause", "cause"}},
          [&](const Json& job, const Labels& labels) {
            if (text_at(job, "reason") != "well") visit(job, labels);  // each is a series of its own
          });
    default: break;
  }
  for (const Json* const job : jobs_of_different_names(status)) visit_job(*job, family.subject, visit);
}

}  // namespace

std::string metrics_text(const Json& status) {
  std::string out;
  for (const Family& family : kFamilies) {
    out.append("# HELP ").append(family.name).append(" ").append(family.help).append("\n");
    out.append("# TYPE ").append(family.name).append(" ").append(type_of(family.kind)).append("\n");
    const Json::json_pointer place{is_map(family.subject) ? "" : std::string(family.place)};
    visit_objects(status, family, [&](const Json& object, const Labels& labels) {
      if (object.contains(place)) add_value(out, family, labels, object[place]);
    });
  }
  return out;
}

}  // namespace deft::daemon
