#include "tools/daemon_status.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "core/base/text.h"
#include "core/ipc/daemon_query.h"
#include "core/model/policy_text.h"

namespace deft::tools {
namespace {

using nlohmann::json;

std::string bytes_text(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text;
}

// Columns as wide as their widest cell.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (i >= widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string out;
  for (const auto& row : rows) {
    std::string line = "   ";
    for (std::size_t i = 0; i < row.size(); ++i) line += " " + row[i] + std::string(widths[i] - row[i].size() + 1, ' ');
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

// A field as text; "-" if this daemon does not tell it. Names and errors are those of any user, and root reads them.
std::string cell(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "-";
  return escape_controls(found->is_string() ? found->get<std::string>() : found->dump());
}

double number(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// "-" if nothing is known.
std::string milliseconds(double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f ms", us / 1e3);
  return us > 0 ? text : "-";
}

// Compute and waiting together are the time of a step.
std::string workers_table(const json& job) {
  std::vector<std::vector<std::string>> rows{{"rank", "pid", "state", "steps", "compute a step", "waits a step"}};
  for (const auto& worker : list_of(job, "workers")) {
    const double waited_us = number(worker, "waited_us");
    rows.push_back({cell(worker, "rank"), cell(worker, "pid"), flag_of(worker, "attached", false) ? "attached" : "gone",
                    cell(worker, "steps"), milliseconds(number(worker, "compute_us")),
                    milliseconds(waited_us / std::max(1.0, number(worker, "steps")))});
  }
  return rows.size() > 1 ? table(rows) : "";
}

std::string links_table(const json& job) {
  std::vector<std::vector<std::string>> rows{{"link", "state", "parts", "reduced", "sent as", "busy", "waiting"}};
  for (const auto& link : list_of(job, "links")) {
    char busy[32];
    std::snprintf(busy, sizeof busy, "%.1f s", number(link, "busy_us") / 1e6);
    const bool lost = link.contains("lost");
    const std::string state = lost                           ? "lost, over " + cell(link, "goes_over")
                              : flag_of(link, "open", false) ? "open"
                                                             : "closed";
    rows.push_back({cell(link, "name"), state, cell(link, "parts"), bytes_text(number(link, "bytes")),
                    bytes_text(number(link, "wire_bytes")), busy, cell(link, "waiting")});
  }
  std::string out = rows.size() > 1 ? table(rows) : "";
  for (const auto& link : list_of(job, "links"))
    if (link.contains("lost"))
      out += "    link " + cell(link, "name") + " was lost; " + cell(link, "run_again") +
             " operations were run again\n        because of " + cell(link, "lost") + "\n";
  return out;
}

std::string groups_table(const json& job) {
  std::vector<std::vector<std::string>> rows{{"group", "tensors", "buckets", "size", "steps done"}};
  for (const auto& group : list_of(job, "groups"))
    rows.push_back({cell(group, "id"), cell(group, "tensors"), cell(group, "buckets"),
                    bytes_text(number(group, "bytes")), cell(group, "step")});
  return rows.size() > 1 ? table(rows) : "";
}

// The step time of the slowest worker of each node, waiting left out: the others wait for the slowest of all.
std::string nodes_table(const json& job) {
  const auto leader = job.find("leader");
  if (leader == job.end()) return "";
  std::vector<std::vector<std::string>> rows{{"node", "ranks", "compute a step"}};
  for (const auto& node : list_of(*leader, "nodes")) {
    const double step_us = number(node, "step_us");
    if (step_us <= 0) continue;
    rows.push_back({cell(node, "host"), cell(node, "ranks"), milliseconds(step_us)});
  }
  return rows.size() > 1 ? table(rows) : "";
}

// What encoding and decoding take for a megabyte of float32, as plans count on it: measured on the slowest node, or a guess.
std::string codecs_table(const json& job) {
  const auto leader = job.find("leader");
  if (leader == job.end()) return "";
  std::vector<std::vector<std::string>> rows{{"codec", "encode a MB", "decode", "times the guess", "from"}};
  const json nodes = list_of(*leader, "nodes");
  for (const auto& codec : list_of(*leader, "codecs")) {
    char encode[32], decode[32], slowdown[32];
    std::snprintf(encode, sizeof encode, "%.2f ms", number(codec, "encode_us_per_mb") / 1e3);
    std::snprintf(decode, sizeof decode, "%.2f ms", number(codec, "decode_us_per_mb") / 1e3);
    std::snprintf(slowdown, sizeof slowdown, "%.2f", number(codec, "slowdown"));
    const auto node = static_cast<std::size_t>(std::clamp(number(codec, "node"), 0.0, 1e9));
    std::string from = "no node yet";
    if (codec.contains("node") && node < nodes.size())
      from = "node " + cell(codec, "node") + ", " + cell(nodes[node], "host") +
             (flag_of(codec, "measured", false) ? "" : ", by its other codecs");
    rows.push_back({cell(codec, "codec"), encode, decode, slowdown, from});
  }
  return rows.size() > 1 ? table(rows) : "";
}

// The Preserver's judgement of a plan when it was chosen; empty: nothing judges plans.
std::string judgement_text(const json& plan) {
  const auto judgement = plan.find("judgement");
  if (judgement == plan.end()) return "";
  if (!flag_of(*judgement, "judged", false)) return "        not judged: " + cell(*judgement, "note") + "\n";
  char text[160];
  std::snprintf(text, sizeof text, "        %s by the Preserver: ratio %.4f, capacity %.2f, plan %.0f that was tried",
                flag_of(*judgement, "accepted", false) ? "accepted" : "not accepted", number(*judgement, "ratio"),
                number(*judgement, "capacity"), number(*judgement, "attempts"));
  return text + std::string("\n");
}

// "int8 on 5 buckets, none on 3"; empty: the plan encodes nothing.
std::string codecs_text(const json& plan) {
  const auto codecs = plan.find("codecs");
  if (codecs == plan.end() || !codecs->is_object() || codecs->empty()) return "";
  std::string text;
  for (const auto& [name, count] : codecs->items())
    text += (text.empty() ? "        " : ", ") + escape_controls(name) + " on " + count.dump() + " buckets";
  char error[80];
  std::snprintf(error, sizeof error, "; error %.2g, at least %.2g", number(plan, "codec_error"),
                number(plan, "codec_error_bound"));
  return text + error + "\n";
}

// The leader's plans: since when, what they promise, and why they were made.
std::string plans_text(const json& job) {
  const auto leader = job.find("leader");
  if (leader == job.end()) return "";
  std::string out;
  for (const auto& plan : list_of(*leader, "plans")) {
    char numbers[160];
    std::snprintf(numbers, sizeof numbers,
                  "%.2f updates a step, at most %.0f steps late, %.0f merged; %.1f ms a step for %.1f ms of compute",
                  number(plan, "updates_per_step"), number(plan, "max_staleness_steps"),
                  number(plan, "max_merged_steps"), number(plan, "step_us") / 1e3, number(plan, "compute_us") / 1e3);
    out += "    plan " + cell(plan, "epoch") + " of group " + cell(plan, "group") + ", from step " +
           cell(plan, "from_step") + ": " + numbers + "\n        because of " + cell(plan, "reason") + "\n" +
           codecs_text(plan) + judgement_text(plan);
  }
  return out;
}

// Which codec made the loss rise, or did not.
std::string preserver_text(const json& job) {
  const auto leader = job.find("leader");
  if (leader == job.end()) return "";
  std::string out;
  for (const auto& preserver : list_of(*leader, "preserver"))
    if (preserver.contains("codecs"))
      out += "    codecs of group " + cell(preserver, "group") + ": " + cell(preserver, "codecs") + "\n";
  return out;
}

// Which buckets the policy merges, since when and why.
std::string merging_text(const json& job) {
  const auto leader = job.find("leader");
  if (leader == job.end()) return "";
  std::string out;
  for (const auto& merging : list_of(*leader, "merging"))
    out += "    group " + cell(merging, "group") + ", from step " + cell(merging, "from_step") + ": merged " +
           cell(merging, "buckets") + " buckets into " + cell(merging, "transfers") +
           " transfers: " + cell(merging, "groups") + "\n        because of " + cell(merging, "reason") + "\n";
  return out;
}

// The policy of the job, before and now, with reasons: the newest changes, with the simulated times of the best candidates.
std::string policies_text(const json& job) {
  const auto leader = job.find("leader");
  if (leader == job.end()) return "";
  constexpr std::size_t kCandidatesShown = 4;
  std::string out;
  for (const auto& change : list_of(*leader, "policies")) {
    out += "    group " + cell(change, "group") + ", from step " + cell(change, "from_step") + ": policy " +
           cell(change, "policy") + "\n        because " + cell(change, "reason") + "\n";
    const json forecasts = list_of(change, "simulated");
    for (std::size_t i = 0; i < std::min(forecasts.size(), kCandidatesShown); ++i) {
      char text[96];
      std::snprintf(text, sizeof text, " %.2f ms", number(forecasts[i], "step_us") / 1e3);
      out += (i == 0 ? "        simulated: " : ", ") + cell(forecasts[i], "policy") + text;
    }
    if (!forecasts.empty()) out += "\n";
  }
  return out;
}

std::string describe_job(const json& job) {
  const std::string codec = cell(job, "compression");
  const std::string compression = codec == "none" || codec == "-" ? "" : ", compression " + codec;
  std::string out = "job " + cell(job, "name") + ": " + cell(job, "state") + ", " +
                    escape_controls(model::policy_text(job)) + compression + ", world " + cell(job, "world") +
                    ", node " + cell(job, "node") + " of " + cell(job, "nodes") +
                    (flag_of(job, "leads", false) ? " (leads)" : "") + "\n";
  out += workers_table(job) + nodes_table(job) + links_table(job) + groups_table(job) + codecs_table(job) +
         plans_text(job) + preserver_text(job) + merging_text(job) + policies_text(job);
  for (const auto& stall : list_of(job, "stalls")) {
    char age[32];
    std::snprintf(age, sizeof age, "%.1f s", number(stall, "age_ms") / 1e3);
    out += "    stalled: rank " + cell(stall, "rank") + " owes '" + cell(stall, "owes") + "' of step " +
           cell(stall, "step") + "; others have waited " + age + "\n";
  }
  return out;
}

}  // namespace

bool flag_of(const json& object, const char* key, bool otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

std::string text_of(const json& object, const char* key, const std::string& otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

json list_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : json::array();
}

Result<DaemonStatus> query_daemon(const std::string& socket, TimeUs patience_us) {
  auto status = ipc::query_status(socket, patience_us);
  if (!status) return tl::unexpected(status.error());
  auto parsed = json::parse(status->text, nullptr, false);
  if (!parsed.is_object())
    return fail(ErrorKind::kViolation, "the daemon at " + status->path + " answered with no JSON object");
  return DaemonStatus{std::move(parsed), std::move(status->path)};
}

std::string describe_status(const json& status, const std::string& path) {
  std::string out = "deftd " + cell(status, "version") + ", pid " + cell(status, "pid") + ", at " + path +
                    (flag_of(status, "takes_jobs", true) ? "" : ", takes no new jobs") + "\n";
  const json jobs = list_of(status, "jobs");
  if (jobs.empty()) out += "no job\n";
  for (const auto& job : jobs) out += describe_job(job);
  for (const auto& job : list_of(status, "ended_jobs"))
    out += "ended " + cell(job, "ended_s_ago") + " s ago: job " + cell(job, "name") + ", " + cell(job, "reason") +
           (text_of(job, "cause", "").empty() ? "" : ": " + cell(job, "cause")) + "\n";
  return out;
}

}  // namespace deft::tools
