// deft probe: what every link costs between every two nodes, between all of them, and while all links are used at once.
//
// One process a node takes part (local rank 0; the others end at once). They meet in rank 0's store, and then run the same
// list of measurements one after the other, so that none disturbs another: link by link, pair by pair.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iterator>
#include <latch>
#include <map>
#include <numeric>
#include <set>

#include "core/base/host_name.h"
#include "core/base/numbers.h"
#include "core/base/placement.h"
#include "core/base/text.h"
#include "core/link/address.h"
#include "core/link/backends.h"
#include "core/link/encryption_rule.h"
#include "tools/command.h"
#include "tools/nic_facts.h"
#include "tools/probe_measure.h"
#include "tools/probe_report.h"
#include "tools/probe_store.h"

namespace deft::tools {
namespace {

constexpr const char* kUsage =
    "usage: deft probe [--json] [--output FILE] [--seconds S] [--port N] [any option]\n"
    "\n"
    "Measures latency and throughput of every link (DEFT_LINKS) between all nodes, and of all links at once. One "
    "process "
    "a node\n"
    "takes part, so start it as the job is started: deftrun -np 2 --nodes 2 deft probe\n"
    "\n"
    "  --json          JSON instead of the table\n"
    "  --output FILE   writes the JSON to FILE, too: rank 0 does. DEFT_LINK_COSTS and deft simulate --link-costs read "
    "it\n"
    "  --seconds S     how long each link is measured between two nodes; 0.5\n"
    "  --port N        where the processes meet on rank 0's node: the same for all. Else the port behind the leader's\n"
    "  any option      as --links=gloo:eth0 (deft options lists them)\n";
constexpr TimeUs kPartingUs = 2'000'000;

struct ProbeOptions {
  bool json = false;
  std::string output;  // a file for the JSON
  std::string port;
  double seconds = 0.5;
};

Result<std::string> value_or(std::vector<std::string>& arguments, std::string_view flag, std::string otherwise) {
  auto value = take_value(arguments, flag);
  if (!value) return otherwise;
  if (value->empty()) return fail(ErrorKind::kInvalid, std::string(flag) + " needs a value", "see deft probe --help");
  return *std::move(value);
}

Result<ProbeOptions> parse(std::vector<std::string>& arguments) {
  ProbeOptions options;
  options.json = take_flag(arguments, "--json");
  auto output = value_or(arguments, "--output", "");
  auto port = value_or(arguments, "--port", "");
  auto seconds = value_or(arguments, "--seconds", "0.5");
  for (const auto* value : {&output, &port, &seconds})
    if (!*value) return tl::unexpected(value->error());
  options.output = *output;
  options.port = *port;
  char* end = nullptr;
  options.seconds = std::strtod(seconds->c_str(), &end);
  if (*end != '\0' || !(options.seconds > 0) || options.seconds > 3600)
    return fail(ErrorKind::kInvalid, "--seconds " + *seconds + " is not a number of seconds", "give 0.5, for instance");
  return options;
}

// Rank 0's store listens beside its daemon.
Result<std::string> store_address(const std::string& leader, const std::string& port) {
  const auto colon = leader.rfind(':');
  const std::string text = port.empty() ? leader.substr(colon + 1) : port;
  const auto given = parse_whole<std::uint16_t>(text);
  const int number = given ? *given + (port.empty() ? 1 : 0) : 0;
  const bool is_port = number >= 1 && number <= 65535;
  if (!port.empty() && !is_port)
    return fail(ErrorKind::kInvalid, "--port " + port + " is no port", "give a number from 1 to 65535");
  if (colon == std::string::npos || !is_port)
    return fail(ErrorKind::kInvalid, "no port beside the leader '" + leader + "'", "give all processes one: --port N");
  return leader.substr(0, colon + 1) + std::to_string(number);
}

// The processes that measure, and their links.
class Probe {
 public:
  Probe(const Config& config, const ProbeOptions& options, Placement placement, std::shared_ptr<ProbeStore> store)
      : timeout_us_(config.seconds_us("timeout")),
        encrypts_(config.text("encrypt_gradients") == "on"),
        key_file_(config.text("secret_file")),
        options_(options),
        placement_(std::move(placement)),
        store_(std::move(store)) {}

  Result<void> meet(std::vector<link::LinkSpec> specs);
  Result<void> measure();
  Result<std::vector<ProbeRow>> collect();
  void part();
  [[nodiscard]] const std::vector<ProbeNode>& nodes() const { return nodes_; }

 private:
  struct Item {
    std::vector<std::size_t> links;  // several: at once
    std::vector<std::uint32_t> nodes;
  };
  Result<void> check_links() const;
  [[nodiscard]] std::vector<Item> items() const;
  void leave_out_failed(Item& item) const;
  [[nodiscard]] std::string why_in_the_clear(const link::LinkSpec& spec) const;
  std::vector<ProbeRow> measure(const Item& item, std::size_t index, std::uint32_t place);
  void measure_link_of(const Item& item, std::size_t index, std::uint32_t place, ProbeRow& row, std::latch& opened);
  Result<void> measure_opened(link::Link& link, ProbeRow& row) const;
  [[nodiscard]] TimeUs patience_us() const { return 3 * timeout_us_ + static_cast<TimeUs>(options_.seconds * 2e7); }

  const TimeUs timeout_us_;
  const bool encrypts_;
  const std::string key_file_;
  const ProbeOptions options_;
  const Placement placement_;
  std::shared_ptr<ProbeStore> store_;
  std::vector<link::LinkSpec> specs_;
  std::vector<ProbeNode> nodes_;
  std::set<std::size_t> failed_;                // links
  std::map<std::size_t, std::size_t> largest_;  // [link], the largest size of its newest measurement
  std::uint32_t node_ = 0;                      // this process among nodes_
};

std::string key_of(const char* what, std::size_t index) { return what + ("/" + std::to_string(index)); }

// All ranks say who they are; those of local rank 0 are the nodes.
Result<void> Probe::meet(std::vector<link::LinkSpec> specs) {
  specs_ = std::move(specs);
  ProbeNode own{placement_.rank, host_name(), {}, {}, {}, {}, encrypts_};
  for (const auto& spec : specs_) {
    const auto nics = nic_facts(nics_of(spec));
    own.mtus.push_back(nics.empty() ? 0 : std::ranges::min(nics, {}, &NicFacts::mtu).mtu);
    own.links.push_back(spec.name());
    own.addresses.push_back(spec.address);
    own.common.push_back(spec.common());
  }
  const bool measures = placement_.local_rank == 0;
  if (auto ok = store_->set_text(key_of("rank", placement_.rank), measures ? to_json(own).dump() : ""); !ok) return ok;
  if (!measures) return {};
  const TimeUs deadline = MonotonicClock::now() + timeout_us_;
  for (std::uint32_t rank = 0; rank < placement_.size; ++rank) {
    auto text = store_->get_text(key_of("rank", rank), deadline);
    if (!text && text.error().kind == ErrorKind::kTimeout)
      return fail(ErrorKind::kTimeout, "rank " + std::to_string(rank) + " of deft probe did not come in time",
                  "start it on every node: deftrun does, and srun or mpirun");
    if (!text) return tl::unexpected(text.error());
    if (text->empty()) continue;
    auto node = node_from(*text);
    if (!node) return tl::unexpected(node.error());
    if (rank == placement_.rank) node_ = static_cast<std::uint32_t>(nodes_.size());
    nodes_.push_back(*std::move(node));
  }
  return check_links();
}

Result<void> Probe::check_links() const {
  for (std::size_t i = 1; i < nodes_.size(); ++i) {
    if (nodes_[i].encrypts != nodes_[0].encrypts)
      return fail(ErrorKind::kMismatch,
                  "encrypt_gradients is not the same on " + nodes_[0].host + " (rank " +
                      std::to_string(nodes_[0].rank) + ") and " + nodes_[i].host + " (rank " +
                      std::to_string(nodes_[i].rank) + ")",
                  "give all nodes the same DEFT_ENCRYPT_GRADIENTS");
    if (nodes_[i].common == nodes_[0].common) continue;
    const auto listed = [](const ProbeNode& node) {
      return joined(node.links, ",") + " on " + node.host + " (rank " + std::to_string(node.rank) + ")";
    };
    return fail(ErrorKind::kMismatch,
                "the nodes differ in their links: " + listed(nodes_[0]) + ", " + listed(nodes_[i]),
                "give all nodes the same DEFT_LINKS");
  }
  if (nodes_.size() > 1) return {};
  return fail(ErrorKind::kInvalid, "deft probe needs two nodes or more, and there is one",
              "start it on every node, for instance: deftrun -np 2 --nodes 2 deft probe");
}

std::vector<Probe::Item> Probe::items() const {
  std::vector<Item> all;
  const auto count = static_cast<std::uint32_t>(nodes_.size());
  std::vector<std::uint32_t> everybody(count);
  std::iota(everybody.begin(), everybody.end(), 0U);
  for (std::size_t link = 0; link < specs_.size(); ++link) {
    for (std::uint32_t a = 0; a < count; ++a)
      for (std::uint32_t b = a + 1; b < count; ++b) all.push_back({{link}, {a, b}});
    if (count > 2) all.push_back({{link}, everybody});
  }
  Item at_once{{}, everybody};
  for (std::size_t link = 0; link < specs_.size(); ++link) at_once.links.push_back(link);
  if (specs_.size() > 1) all.push_back(at_once);
  return all;
}

std::vector<ProbeRow> Probe::measure(const Item& item, std::size_t index, std::uint32_t place) {
  std::vector<ProbeRow> rows(item.links.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].link = item.links[i];
    rows[i].nodes = item.nodes;
    rows[i].at_once = rows.size() > 1;
  }
  std::latch opened(static_cast<std::ptrdiff_t>(rows.size()));
  std::vector<std::future<void>> others;
  for (std::size_t i = 1; i < rows.size(); ++i)
    others.push_back(std::async(std::launch::async, [&, i] { measure_link_of(item, index, place, rows[i], opened); }));
  if (!rows.empty()) measure_link_of(item, index, place, rows.front(), opened);
  for (auto& other : others) other.get();
  return rows;
}

// Why a link would not encrypt what it sends; empty if it would.
std::string Probe::why_in_the_clear(const link::LinkSpec& spec) const {
  const bool is_one_machine = link::is_loopback_address(placement_.leader);
  switch (link::clear_cause(link::find_backend(spec.backend)->encryption, !key_file_.empty(), is_one_machine)) {
    case link::ClearCause::kBackend: return "cannot encrypt, and encrypt_gradients is on";
    case link::ClearCause::kNoKey: return "cannot encrypt without a key (secret_file), and encrypt_gradients is on";
    case link::ClearCause::kNone: break;
  }
  return "";
}

void Probe::measure_link_of(const Item& item, std::size_t index, std::uint32_t place, ProbeRow& row,
                            std::latch& opened) {
  if (encrypts_) row.error = why_in_the_clear(specs_[row.link]);
  if (!row.error.empty()) return opened.count_down();
  const TimeUs now = MonotonicClock::now();
  link::LinkGroup group;
  group.encrypts = encrypts_;
  group.key_file = key_file_;
  group.node = place;
  group.nodes = static_cast<std::uint32_t>(item.nodes.size());
  group.prefix = key_of("link", index) + "/" + std::to_string(row.link);
  group.store = store_;
  group.connect_deadline_us = now + timeout_us_;
  group.silence_us = timeout_us_ / 2;
  auto link = link::open_link(specs_[row.link], group);
  opened.arrive_and_wait();  // those that are measured at once begin together
  const auto measured = link ? measure_opened(**link, row) : tl::unexpected(link.error());
  if (!measured) row.error = measured.error().message();
}

Result<void> Probe::measure_opened(link::Link& link, ProbeRow& row) const {
  const TimeUs now = MonotonicClock::now();
  const ProbeLimits limits{options_.seconds, now + 2 * timeout_us_ + static_cast<TimeUs>(options_.seconds * 2e7),
                           16U << 20};
  if (row.at_once) {
    const auto largest = largest_.find(row.link);
    if (largest == largest_.end()) return fail(ErrorKind::kViolation, "its measurement alone is missing");
    const auto sample = measure_for(link, largest->second, limits);
    if (!sample) return tl::unexpected(sample.error());
    row.samples = {*sample};
    row.fit.bytes_per_us = static_cast<double>(sample->bytes) / sample->us;
    return {};
  }
  auto samples = measure_link(link, limits);
  if (!samples) return tl::unexpected(samples.error());
  const auto fit = model::fit_link(*samples);
  if (!fit) return tl::unexpected(fit.error());
  row.samples = *std::move(samples);
  row.fit = *fit;
  if (row.nodes.size() != 2 || !link.composes()) return {};
  auto rates = measure_one_way(link, row.samples.back().bytes, limits);
  if (!rates) return tl::unexpected(rates.error());
  row.one_way = *std::move(rates);
  return {};
}

// What has failed alone needs no second try with the others. All nodes know of it.
void Probe::leave_out_failed(Item& item) const {
  if (item.links.size() < 2) return;
  std::erase_if(item.links, [this](std::size_t link) { return failed_.contains(link); });
  if (item.links.size() < 2) item.links.clear();
}

Result<void> Probe::measure() {
  auto all = items();
  for (std::size_t i = 0; i < all.size(); ++i) {
    leave_out_failed(all[i]);
    const auto mine = std::find(all[i].nodes.begin(), all[i].nodes.end(), node_);
    const auto place = static_cast<std::uint32_t>(mine - all[i].nodes.begin());
    if (mine != all[i].nodes.end()) {
      auto rows = nlohmann::json::array();
      for (const auto& row : measure(all[i], i, place)) rows.push_back(to_json(row));
      if (place == 0)
        if (auto ok = store_->set_text(key_of("rows", i), rows.dump()); !ok) return ok;
    }
    const auto done = store_->get_text(key_of("rows", i), MonotonicClock::now() + patience_us());
    if (!done && done.error().kind == ErrorKind::kTimeout)
      return fail(ErrorKind::kTimeout, "node " + std::to_string(all[i].nodes.front()) + " did not end its measurement",
                  "look at its output");
    const auto rows = done ? rows_from(*done, nodes_.size(), specs_.size()) : tl::unexpected(done.error());
    if (!rows) return tl::unexpected(rows.error());
    for (const auto& row : *rows) {
      if (!row.error.empty()) failed_.insert(row.link);
      if (!row.samples.empty()) largest_[row.link] = row.samples.back().bytes;
    }
  }
  return {};
}

Result<std::vector<ProbeRow>> Probe::collect() {
  std::vector<ProbeRow> rows;
  const std::size_t count = items().size();
  for (std::size_t i = 0; i < count; ++i) {
    auto text = store_->get_text(key_of("rows", i), MonotonicClock::now() + timeout_us_);
    if (!text) return tl::unexpected(text.error());
    auto measured = rows_from(*text, nodes_.size(), specs_.size());
    if (!measured) return tl::unexpected(measured.error());
    std::ranges::move(*measured, std::back_inserter(rows));
  }
  return rows;
}

// Rank 0 goes last: the others still ask its store.
void Probe::part() {
  [[maybe_unused]] const auto said = store_->set_text(key_of("bye", placement_.rank), "bye");
  if (placement_.rank != 0) return;
  const TimeUs deadline = MonotonicClock::now() + kPartingUs;
  for (std::uint32_t rank = 0; rank < placement_.size; ++rank)
    [[maybe_unused]] const auto heard = store_->get_text(key_of("bye", rank), deadline);
}

Result<int> report(const Probe& probe, const std::vector<ProbeRow>& rows, const ProbeOptions& options) {
  const std::string json = json_text(report_json(probe.nodes(), rows));
  std::fputs((options.json ? json : report_table(probe.nodes(), rows)).c_str(), stdout);
  if (!options.output.empty()) {
    if (auto ok = write_text(options.output, json); !ok) return tl::unexpected(ok.error());
  }
  const bool failed = std::any_of(rows.begin(), rows.end(), [](const ProbeRow& row) { return !row.error.empty(); });
  return failed ? kExitFailed : kExitOk;
}

}  // namespace

Result<int> run_probe(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  if (take_flag(arguments, "--help") || take_flag(arguments, "-h")) {
    std::fputs(kUsage, stdout);
    return kExitOk;
  }
  const auto options = parse(arguments);
  if (!options) return tl::unexpected(options.error());
  const auto config = load_config(arguments);
  if (!config) return tl::unexpected(config.error());
  auto placement = find_placement(*config, [](const char* name) -> const char* { return std::getenv(name); });
  if (!placement) return tl::unexpected(placement.error());
  if (placement->size < 2)
    return fail(ErrorKind::kInvalid, "deft probe measures between nodes, and this is one process",
                "start it on every node, for instance: deftrun -np 2 --nodes 2 deft probe");
  auto specs = link::resolve_links(config->text("links"), link::is_loopback_address(placement->leader));
  if (!specs) return tl::unexpected(specs.error());
  const auto address = store_address(placement->leader, options->port);
  if (!address) return tl::unexpected(address.error());
  const bool first = placement->rank == 0;
  auto store = ProbeStore::open(*address, first, config->seconds_us("timeout"));
  if (!store) return tl::unexpected(store.error());
  const bool measures = placement->local_rank == 0;
  Probe probe(*config, *options, *std::move(placement), *std::move(store));
  auto done = probe.meet(*std::move(specs));
  const bool alone = !done && done.error().kind == ErrorKind::kTimeout;
  if (done && measures) done = probe.measure();
  Result<int> status = kExitOk;
  if (!done) status = tl::unexpected(done.error());
  if (done && first) {
    const auto rows = probe.collect();
    status = rows ? report(probe, *rows, *options) : tl::unexpected(rows.error());
  }
  if (!alone || first) probe.part();
  return status;
}

}  // namespace deft::tools
