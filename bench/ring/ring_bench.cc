// The round trip of a record between two processes: a record into one ring, an answer out of the other.
//
//   ring_bench [--seconds S] [--json FILE]
//
// `spinning` polls the ring; `sleeping` waits for the doorbell each time, as idle sides do. Both processes are bound to a
// core each if there are two. A pipe's round trip, measured in the same run, says what this machine's wake-ups cost:
// compare with it rather than with another machine.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/shm/control_segment.h"
#include "core/shm/doorbell.h"
#include "core/shm/ring.h"

namespace {

using namespace deft;
using namespace deft::shm;
using Nanoseconds = std::chrono::nanoseconds;

struct Row {
  std::string name;
  std::vector<double> us;  // round trips, sorted
  [[nodiscard]] double at(double share) const {
    return us[std::min(us.size() - 1, static_cast<std::size_t>(share * static_cast<double>(us.size())))];
  }
};

std::int64_t now_ns() {
  return std::chrono::duration_cast<Nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The cores that this program may use. Called before the first bind_to(), these are the cores of the start.
cpu_set_t started_with() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof cores, &cores);
  return cores;
}

// Binds to the core with the number `index` among the cores of the start; does nothing if there was only one core.
void bind_to(int index) {
  static const cpu_set_t allowed = started_with();
  if (CPU_COUNT(&allowed) < 2) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && seen++ == index) CPU_SET(cpu, &one);
  sched_setaffinity(0, sizeof one, &one);
}

// Runs `child` in a process of its own while `parent` measures.
Row in_two_processes(const std::string& name, const std::function<void()>& child,
                     const std::function<void(std::vector<double>&)>& parent) {
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    bind_to(1);
    child();
    _exit(0);
  }
  bind_to(0);
  Row row{name, {}};
  parent(row.us);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  std::sort(row.us.begin(), row.us.end());
  return row;
}

void measure(double seconds, std::vector<double>& us, const std::function<void()>& round_trip) {
  for (int i = 0; i < 1000; ++i) round_trip();
  const std::int64_t end = now_ns() + static_cast<std::int64_t>(seconds * 1e9);
  for (std::int64_t before = now_ns(); before < end;) {
    round_trip();
    const std::int64_t after = now_ns();
    us.push_back(static_cast<double>(after - before) / 1000);
    before = after;
  }
}

class Rings {
 public:
  Rings()
      : segment_(*Segment::create("bench", kControlSegmentBytes)),
        view_(ControlSegment::format(segment_, 1)),
        there_(*Doorbell::create()),
        back_(*Doorbell::create()) {}

  void echo(bool sleeping) {
    Consumer in(view_.submission(), view_.submission_records());
    Producer out(view_.completion(), view_.completion_records());
    while (true) {
      const Record record = take(in, there_, sleeping);
      if (out.push(record) == Push::kWake) back_.ring();
    }
  }
  void measure_round_trips(bool sleeping, double seconds, std::vector<double>& us) {
    Producer out(view_.submission(), view_.submission_records());
    Consumer in(view_.completion(), view_.completion_records());
    measure(seconds, us, [&] {
      if (out.push({}) == Push::kWake) there_.ring();
      take(in, back_, sleeping);
    });
  }

 private:
  static Record take(Consumer& in, const Doorbell& bell, bool sleeping) {
    Record record;
    while (in.pop(record) != Pop::kRecord) {
      if (!sleeping || !in.prepare_to_sleep()) continue;
      static_cast<void>(bell.wait(MonotonicClock::now() + 1'000'000));
      in.woke();
    }
    return record;
  }
  Segment segment_;
  ControlSegment view_;
  Doorbell there_, back_;
};

Row ring(const std::string& name, bool sleeping, double seconds) {
  Rings rings;
  return in_two_processes(
      name, [&] { rings.echo(sleeping); },
      [&](std::vector<double>& us) { rings.measure_round_trips(sleeping, seconds, us); });
}

Row pipes(double seconds) {
  int there[2], back[2];
  if (pipe(there) != 0 || pipe(back) != 0) std::abort();
  const auto pass = [](int from, int to) {
    char byte = 0;
    return read(from, &byte, 1) == 1 && write(to, &byte, 1) == 1;
  };
  Row row = in_two_processes(
      "pipe, for comparison",
      [&] {
        while (pass(there[0], back[1])) {
        }
      },
      [&](std::vector<double>& us) {
        measure(seconds, us, [&] {
          char byte = 0;
          if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1) std::abort();
        });
      });
  for (const int fd : {there[0], there[1], back[0], back[1]}) close(fd);
  return row;
}

void print(const std::vector<Row>& rows) {
  std::printf("%-22s %10s %10s %10s %12s\n", "round trip", "p50 us", "p99 us", "p99.9 us", "round trips");
  for (const auto& row : rows)
    std::printf("%-22s %10.2f %10.2f %10.2f %12zu\n", row.name.c_str(), row.at(0.5), row.at(0.99), row.at(0.999),
                row.us.size());
}

void write_json(const std::vector<Row>& rows, const std::string& path) {
  std::ofstream out(path);
  out << "[";
  for (std::size_t i = 0; i < rows.size(); ++i)
    out << (i ? ",\n " : "") << "{\"name\": \"" << rows[i].name << "\", \"p50_us\": " << rows[i].at(0.5)
        << ", \"p99_us\": " << rows[i].at(0.99) << ", \"p999_us\": " << rows[i].at(0.999)
        << ", \"round_trips\": " << rows[i].us.size() << "}";
  out << "]\n";
  if (!out.flush()) std::fprintf(stderr, "ring_bench: cannot write %s\n", path.c_str());
}

}  // namespace

int main(int count, char** words) {
  double seconds = 2;
  std::string json;
  for (int i = 1; i < count; i += 2) {
    const std::string_view name = words[i];
    if (i + 1 < count && name == "--seconds" && std::atof(words[i + 1]) > 0) {
      seconds = std::atof(words[i + 1]);
    } else if (i + 1 < count && name == "--json") {
      json = words[i + 1];
    } else {
      std::fprintf(stderr, "usage: ring_bench [--seconds S] [--json FILE]\n");
      return 2;
    }
  }
  const std::vector<Row> rows = {ring("ring, spinning", false, seconds), ring("ring, sleeping", true, seconds),
                                 pipes(seconds)};
  print(rows);
  if (!json.empty()) write_json(rows, json);
  return 0;
}
