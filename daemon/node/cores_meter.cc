#include "daemon/node/cores_meter.h"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "core/base/numbers.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kPeriodUs = 500'000;
constexpr std::uint64_t kUs = 1'000'000;
constexpr std::size_t kMaskBits = 64;

// Of a line of /proc/stat. Interrupts are nobody's programs. A virtual machine's stolen time is that of others on its host.
enum Column : std::size_t { kUser, kNice, kSystem, kIdle, kWaits, kInterrupts, kSoftInterrupts, kStolen, kColumns };
constexpr std::array kOfPrograms = {kUser, kNice, kSystem, kStolen};

// Adds the cores on which this process may run. False: nobody knows them.
bool add_cores(pid_t process, cpu_set_t& cores) {
  cpu_set_t own;
  if (::sched_getaffinity(process, sizeof(own), &own) != 0) return false;
  CPU_OR(&cores, &cores, &own);
  return true;
}

std::optional<std::uint64_t> used_us(clockid_t clock) {
  timespec used{};
  if (::clock_gettime(clock, &used) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(used.tv_sec) * kUs + static_cast<std::uint64_t>(used.tv_nsec) / 1000;
}

std::optional<std::uint64_t> used_by(pid_t process) {
  clockid_t clock = 0;
  if (process <= 0 || ::clock_getcpuclockid(process, &clock) != 0) return std::nullopt;
  return used_us(clock);
}

// How long the main thread of a process was ready to run, and had no core.
std::uint64_t waited_us(const std::string& proc, pid_t process) {
  std::ifstream file(proc + "/" + std::to_string(process) + "/schedstat");
  std::uint64_t ran_ns = 0, waited_ns = 0;
  file >> ran_ns >> waited_ns;
  return waited_ns / 1000;
}

// What programs have used of these cores.
std::optional<std::uint64_t> busy_us(const std::string& proc, const cpu_set_t& cores) {
  const auto ticks_a_second = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  std::ifstream file(proc + "/stat");
  std::uint64_t ticks = 0;
  bool is_known = false;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    std::string number;
    words >> number;
    const auto core = parse_whole<std::size_t>(number);
    if (line[3] == ' ' || !core || *core >= CPU_SETSIZE || !CPU_ISSET(*core, &cores)) continue;
    std::array<std::uint64_t, kColumns> columns{};
    for (auto& column : columns) words >> column;
    for (const Column column : kOfPrograms) ticks += columns[column];
    is_known = true;
  }
  if (!is_known || ticks_a_second == 0) return std::nullopt;
  return ticks * kUs / ticks_a_second;
}

std::uint64_t folded(const cpu_set_t& cores) {
  std::uint64_t mask = 0;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &cores)) mask |= std::uint64_t{1} << (core % kMaskBits);
  return mask;
}

std::uint64_t grown(std::uint64_t now, std::uint64_t before) { return now > before ? now - before : 0; }

}  // namespace

std::optional<CoresMeter::Sums> CoresMeter::read(std::span<const pid_t> workers) const {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  const auto of_daemon = used_us(CLOCK_PROCESS_CPUTIME_ID);
  if (workers.empty() || !of_daemon) return std::nullopt;
  Sums sums{.workers = {workers.begin(), workers.end()}, .trace = {.own_us = *of_daemon}};
  for (const pid_t worker : workers) {
    const auto used = used_by(worker);
    if (!used || !add_cores(worker, cores)) return std::nullopt;
    sums.trace.own_us += *used;
    sums.trace.waited_us += waited_us(proc_, worker);
  }
  const auto busy = busy_us(proc_, cores);
  if (!busy) return std::nullopt;
  sums.trace.busy_us = *busy;
  sums.trace.which = folded(cores);
  sums.trace.cores = static_cast<std::uint16_t>(CPU_COUNT(&cores));
  sums.trace.workers = static_cast<std::uint16_t>(workers.size());
  return sums;
}

std::optional<CoresUse> CoresMeter::measure(TimeUs now_us, std::span<const pid_t> workers) {
  if (last_us_ != 0 && now_us - last_us_ < kPeriodUs) return std::nullopt;
  const auto before = std::exchange(last_, read(workers));
  const TimeUs since_us = std::exchange(last_us_, now_us);
  if (!before || !last_ || before->workers != last_->workers || before->trace.which != last_->trace.which ||
      before->trace.cores != last_->trace.cores)
    return std::nullopt;
  CoresUse use{since_us, now_us, last_->trace};
  use.trace.busy_us = grown(last_->trace.busy_us, before->trace.busy_us);
  use.trace.own_us = grown(last_->trace.own_us, before->trace.own_us);
  use.trace.waited_us = grown(last_->trace.waited_us, before->trace.waited_us);
  return use;
}

}  // namespace deft::daemon
