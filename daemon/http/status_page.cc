#include "daemon/http/status_page.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/model/policy_text.h"

namespace deft::daemon {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="refresh" content="5"><title>deftd</title><style>
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:1.5rem auto;max-width:70rem;padding:0 1rem}
h1{font-size:1.35rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:1.6rem 0 .3rem}h3{font-size:.95rem;margin:.9rem 0 .2rem}
table{border-collapse:collapse}th{text-align:left;font-weight:600;opacity:.7}
th,td{padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884;vertical-align:top;overflow-wrap:anywhere}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;padding-left:.8rem}
.bad{color:#c22;font-weight:600}.good{color:#282}.dim{opacity:.7}
@media(prefers-color-scheme:dark){.bad{color:#f77}.good{color:#7d7}}
</style></head><body>
)";

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

double number_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// Escaped; empty if it is not there.
std::string shown(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  return escape_html(found->is_string() ? found->get<std::string>() : found->dump());
}

bool is_true(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

const Json& elements(const Json& object, const char* key) {
  static const Json kNone = Json::array();
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kNone;
}

std::string decimal(double value, const char* unit) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, unit);
  return text.data();
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kUnits.size(); ++unit) bytes /= 1024;
  return decimal(bytes, kUnits[unit]);
}

std::string milliseconds(double us) { return us > 0 ? decimal(us / 1e3, "ms") : ""; }

using Cells = std::vector<std::string>;

bool is_number(const std::string& cell) { return !cell.empty() && cell.front() >= '0' && cell.front() <= '9'; }

// `as`: the cells of the row whose numbers decide which columns are set flush right.
std::string row(const Cells& cells, const Cells& as, const char* element) {
  std::string out = "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    out.append("<").append(element).append(is_number(as[i]) ? " class=n>" : ">").append(cells[i]);
    out.append("</").append(element).append(">");
  }
  return out + "</tr>\n";
}

std::string table(const char* title, const Cells& heads, const std::vector<Cells>& rows) {
  if (rows.empty()) return "";
  std::string out = std::string("<h3>") + title + "</h3>\n<table>" + row(heads, rows.front(), "th");
  for (const Cells& cells : rows) out += row(cells, cells, "td");
  return out + "</table>\n";
}

std::string mark(bool good, const std::string& text) {
  return std::string("<span class=") + (good ? "good>" : "bad>") + text + "</span>";
}

std::string workers(const Json& job) {
  std::vector<Cells> rows;
  for (const auto& one : elements(job, "workers")) {
    const bool here = is_true(one, "attached");
    rows.push_back({shown(one, "rank"), shown(one, "pid"), mark(here, here ? "attached" : "gone"), shown(one, "steps"),
                    milliseconds(number_at(one, "compute_us")), decimal(number_at(one, "waited_us") / 1e6, "s")});
  }
  return table("Workers", {"rank", "pid", "state", "steps", "compute a step", "waited for gradients"}, rows);
}

std::string links(const Json& job) {
  std::vector<Cells> rows;
  for (const auto& one : elements(job, "links")) {
    const bool lost = is_true(one, "is_lost");
    const std::string state = lost ? mark(false, "lost: " + shown(one, "lost"))
                                   : mark(is_true(one, "open"), is_true(one, "open") ? "open" : "not open");
    const auto transfers = one.value("transfers", Json::object());
    const double count = number_at(transfers, "count");
    rows.push_back({shown(one, "name"), state, shown(one, "parts"), bytes_text(number_at(one, "bytes")),
                    bytes_text(number_at(one, "wire_bytes")), decimal(number_at(one, "busy_us") / 1e6, "s"),
                    count > 0 ? milliseconds(number_at(transfers, "sum_us") / count) : "", shown(one, "waiting"),
                    shown(one, "running"), shown(one.value("connections", Json::object()), "resent_packets")});
  }
  return table(
      "Links",
      {"link", "state", "parts", "reduced", "sent as", "busy", "a transfer", "waiting", "running", "sent again"}, rows);
}

std::string nodes(const Json& job) {
  std::vector<Cells> rows;
  if (const auto leader = job.find("leader"); leader != job.end())
    for (const auto& one : elements(*leader, "nodes"))
      rows.push_back({shown(one, "host"), shown(one, "ranks"), milliseconds(number_at(one, "step_us")),
                      shown(one, "silent_ms") + " ms"});
  return table("Nodes", {"host", "ranks", "compute a step", "heard before"}, rows);
}

std::string stalls(const Json& job) {
  std::vector<Cells> rows;
  for (const auto& one : elements(job, "stalls"))
    rows.push_back({shown(one, "rank"), mark(false, shown(one, "owes")), shown(one, "step"),
                    decimal(number_at(one, "age_ms") / 1e3, "s")});
  return table("Stalled", {"rank", "owes", "of step", "for"}, rows);
}

std::string job_section(const Json& job) {
  const bool runs = shown(job, "state") == "running";
  std::string out = "<h2>" + shown(job, "name") + " " + mark(runs, shown(job, "state")) + "</h2>\n<p class=dim>";
  out += "user " + shown(job, "uid") + ", " + shown(job, "world") + " workers, node " + shown(job, "node") + " of " +
         shown(job, "nodes") + (is_true(job, "leads") ? " (leads)" : "") + ", " + escape_html(model::policy_text(job)) +
         ", compression " + shown(job, "compression") + "</p>\n";
  return out + stalls(job) + workers(job) + links(job) + nodes(job);
}

std::string ended_jobs(const Json& status) {
  std::vector<Cells> rows;
  for (const auto& one : elements(status, "ended_jobs")) {
    const bool well = shown(one, "reason") == "well";
    rows.push_back({shown(one, "name"), shown(one, "uid"), shown(one, "world"), mark(well, shown(one, "reason")),
                    shown(one, "ended_s_ago") + " s ago", shown(one, "cause")});
  }
  return table("Ended jobs", {"job", "user", "workers", "end", "when", "cause"}, rows);
}

std::string users(const Json& status) {
  std::vector<Cells> rows;
  for (const auto& one : elements(status, "users"))
    rows.push_back({shown(one, "user"), bytes_text(number_at(one, "memory")), shown(one, "sessions"),
                    shown(one, "descriptors"), shown(one, "threads"), shown(one, "operations")});
  return table("Users", {"user", "shared memory", "clients", "descriptors", "threads", "collectives"}, rows);
}

std::string facts(const Json& status) {
  const auto reactor = status.value("reactor", Json::object());
  const auto longest = reactor.value("longest_callback_of_late", Json::object());
  const auto process = status.value("process", Json::object());
  return table("Daemon",
               {"uptime", "clients", "arenas", "limit", "memory", "descriptors", "threads", "longest callback"},
               {{decimal(number_at(status, "uptime_s"), "s"), shown(status, "sessions"),
                 bytes_text(number_at(status, "memory_bytes")), bytes_text(number_at(status, "memory_limit_bytes")),
                 bytes_text(number_at(process, "resident_memory_bytes")), shown(process, "open_fds"),
                 shown(process, "threads"), decimal(number_at(longest, "us") / 1e3, "ms")}});
}

}  // namespace

std::string status_page(const Json& status) {
  std::string out(kHead);
  const bool answers = is_true(status, "reactor_answers"), takes = is_true(status, "takes_jobs");
  out += "<h1>deftd " + shown(status, "version") + " on " + shown(status, "host") + " ";
  out += mark(answers && takes, !answers ? "does not answer" : takes ? "takes jobs" : "drains") + "</h1>\n";
  out += "<p class=dim>pid " + shown(status, "pid") + ", socket " + shown(status, "socket") + ", control port " +
         shown(status, "listen") + ". " +
         "<a href=/metrics>/metrics</a> <a href=/status>/status</a> <a href=/healthz>/healthz</a> "
         "<a href=/readyz>/readyz</a></p>\n";
  out += facts(status);
  if (elements(status, "jobs").empty()) out += "<h2>No job</h2>\n";
  for (const auto& job : elements(status, "jobs")) out += job_section(job);
  return out + users(status) + ended_jobs(status) + "</body></html>\n";
}

}  // namespace deft::daemon
