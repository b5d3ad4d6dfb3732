#include "core/replay/daemon_cpu.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "core/replay/causes.h"

namespace deft::replay {
namespace {

constexpr double kBusy = 0.9;         // the rest are wake-ups, and what the kernel does not count
constexpr double kLeastTimeUs = 1e5;  // of transfers, that tell how busy a thread is

// When a link had transfers.
class TransferTime {
 public:
  // Ascending by their begin.
  void add(TimeUs begin_us, TimeUs end_us) {
    if (!ends_.empty() && begin_us <= ends_.back()) {
      ends_.back() = std::max(ends_.back(), end_us);
      return;
    }
    before_.push_back(ends_.empty() ? 0 : before_.back() + ends_.back() - begins_.back());
    begins_.push_back(begin_us);
    ends_.push_back(end_us);
  }
  // How long in all until then.
  [[nodiscard]] TimeUs until(TimeUs at_us) const {
    const auto after = std::ranges::upper_bound(begins_, at_us);
    if (after == begins_.begin()) return 0;
    const auto last = static_cast<std::size_t>(after - begins_.begin()) - 1;
    return before_[last] + std::min(at_us, ends_[last]) - begins_[last];
  }

 private:
  std::vector<TimeUs> begins_, ends_, before_;
};

std::map<std::uint16_t, TransferTime> transfer_times(const trace::NodeTrace& trace) {
  std::map<std::uint16_t, TransferTime> times;  // by link
  for (const auto& record : trace.records) {
    if (record.kind() != trace::TraceKind::kTransfer) continue;
    const auto transfer = record.as<trace::TransferTrace>();
    if (transfer.stage != static_cast<std::uint16_t>(trace::TransferStage::kReport))
      times[transfer.link].add(record.begin_us(), record.end_us());
  }
  return times;
}

struct Measured {
  double cpu_us = 0, all_us = 0, transfers_us = 0;
};

void add_uses(const trace::NodeTrace& trace, std::vector<ThreadUse>& uses) {
  const auto transfers = transfer_times(trace);
  std::map<std::tuple<std::uint16_t, std::uint16_t, std::uint16_t>, Measured> threads;  // by link, thread and number
  for (const auto& record : trace.records) {
    if (record.kind() != trace::TraceKind::kCpu) continue;
    const auto cpu = record.as<trace::CpuTrace>();
    Measured& sum = threads[{cpu.link, cpu.thread, cpu.number}];
    sum.cpu_us += static_cast<double>(cpu.cpu_us);
    sum.all_us += static_cast<double>(record.end_us() - record.begin_us());
    if (const auto of_link = transfers.find(cpu.link); of_link != transfers.end())
      sum.transfers_us +=
          static_cast<double>(of_link->second.until(record.end_us()) - of_link->second.until(record.begin_us()));
  }
  for (const auto& [key, sum] : threads) {
    if (sum.all_us <= 0) continue;
    ThreadUse use{.node = trace.header.node,
                  .link = std::get<0>(key),
                  .thread = static_cast<model::DaemonThread>(std::get<1>(key)),
                  .number = std::get<2>(key),
                  .share = sum.cpu_us / sum.all_us,
                  .seconds = sum.cpu_us / 1e6};
    const double time_us = model::is_of_link(use.thread) ? sum.transfers_us : sum.all_us;
    use.busy = time_us < kLeastTimeUs ? 0 : std::min(1.0, sum.cpu_us / time_us);
    uses.push_back(use);
  }
}

}  // namespace

std::vector<ThreadUse> thread_uses(const JobTrace& job) {
  std::vector<ThreadUse> uses;
  for (const auto& node : job.nodes) add_uses(node.trace, uses);
  return uses;
}

std::optional<ThreadUse> busy_thread(const JobTrace& job) {
  auto uses = thread_uses(job);
  std::erase_if(uses, [](const ThreadUse& use) { return use.thread == model::DaemonThread::kAll; });
  const auto most = std::ranges::max_element(uses, {}, &ThreadUse::busy);
  return most == uses.end() || most->busy < kBusy ? std::nullopt : std::optional(*most);
}

std::string place_of(const ThreadUse& use, const JobTrace& job) {
  const std::string node = "node" + std::to_string(use.node);
  const auto& links = job.nodes.front().trace.header.links;
  if (!model::is_of_link(use.thread) || use.link >= links.size()) return node;
  return node + "/" + links[use.link].substr(links[use.link].find(':') + 1);
}

std::string sentence_of(const ThreadUse& use, const JobTrace& job) {
  const std::string node = "node" + std::to_string(use.node), busy = " was busy " + percent(use.busy) + " of the time";
  if (!model::is_of_link(use.thread)) return "the " + std::string(model::work_of(use.thread)) + " of " + node + busy;
  const auto& links = job.nodes.front().trace.header.links;
  const std::string link = use.link < links.size() ? links[use.link] : "link " + std::to_string(use.link);
  return "the thread of " + node + " that " + std::string(model::work_of(use.thread)) + " for " + link + busy +
         " in which that link had transfers";
}

}  // namespace deft::replay
