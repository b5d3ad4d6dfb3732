// The gloo link against gloo's own all-reduce, by turns: two nodes on loopback, as threads of this process.
//
//   all_reduce: one operation of 1 to 256 MB. parts: 17.5 MB, the gradients of a small model, in parts of different sizes.
//   time: ours, and bare_ms: gloo's, the medians over the turns of their best passes. speedup: the median of gloo's time over
//   ours, turn by turn. cpu: milliseconds a node and pass, of all its threads.
//   under_way: the same parts over gloo and MPI, as many under way as the link takes. speedup: over one at a time.
//   encrypted: all-reduces on an encrypted link, and plain_ms: on a plain one; slowdown: the median of their ratios, turn by turn.
//   cipher: what sealing and opening alone would let through, one thread, records of 32 KiB; the limit of an encrypted connection.
//   urgent: 64 KB on a ps link, behind 16 MB that are less urgent; alike_ms: as urgent as they.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "bench/link/loopback.h"
#include "bench/link/polling_store.h"
#include "core/link/backends.h"
#include "core/link/encryption/records.h"

namespace deft::link {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Two links that are measured turn by turn, an odd number of times, so that both see the same machine.
struct Turns {
  int count = 0;
  std::function<Cost()> first, second;
};

struct Medians {
  double first_ms = 0, second_ms = 0, speedup = 0;
  double first_cpu_ms = 0, second_cpu_ms = 0;  // means, a node
};

Medians alternate(const Turns& turns) {
  std::vector<double> first, second, speedup;
  Medians medians;
  for (int turn = 0; turn < turns.count; ++turn) {
    const Cost one = turns.first();
    const Cost other = turns.second();
    first.push_back(one.wall_ms);
    second.push_back(other.wall_ms);
    speedup.push_back(other.wall_ms / one.wall_ms);
    medians.first_cpu_ms += one.cpu_ms_per_node / turns.count;
    medians.second_cpu_ms += other.cpu_ms_per_node / turns.count;
  }
  medians.first_ms = median(first);
  medians.second_ms = median(second);
  medians.speedup = median(speedup);
  return medians;
}

void compare(benchmark::State& state, std::size_t bytes, std::size_t part) {
  const int passes = bytes > (64 << 20) ? 1 : 3;
  Medians medians;
  for (auto _ : state) {
    medians = alternate({5, [&] { return measure(connect_deft("gloo", 1), bytes, part, passes); },
                         [&] { return measure(connect_bare_gloo(), bytes, part, passes); }});
    state.SetIterationTime(medians.first_ms / 1e3);
  }
  state.counters["bare_ms"] = medians.second_ms;
  state.counters["speedup"] = medians.speedup;
  state.counters["cpu"] = medians.first_cpu_ms;
  state.counters["bare_cpu"] = medians.second_cpu_ms;
}

void all_reduce(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0)) << 20;
  compare(state, bytes, bytes);
}
BENCHMARK(all_reduce)
    ->ArgName("MB")
    ->RangeMultiplier(4)
    ->Range(1, 256)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(1);

void parts(benchmark::State& state) { compare(state, 17'500'000, static_cast<std::size_t>(state.range(0)) * 1000); }
BENCHMARK(parts)
    ->ArgName("KB")
    ->Arg(20)
    ->Arg(100)
    ->Arg(200)
    ->Arg(500)
    ->Arg(1000)
    ->Arg(2000)
    ->Arg(4000)
    ->Arg(17500)
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(1);

// One operation under way against as many as the link takes, by turns; the best of three.
void under_way(benchmark::State& state, const std::string& backend) {
  if (!find_backend(backend)->built) return state.SkipWithError("this build has no such link");
  const std::size_t part = static_cast<std::size_t>(state.range(0)) * 1000;
  double one = 1e9;
  double all = 1e9;
  for (auto _ : state) {
    for (int turn = 0; turn < 3; ++turn) {
      one = std::min(one, measure(connect_deft(backend, 1), 17'500'000, part, 8).wall_ms);
      all = std::min(all, measure(connect_deft(backend, 100), 17'500'000, part, 8).wall_ms);
    }
    state.SetIterationTime(all / 1e3);
  }
  state.counters["one_ms"] = one;
  state.counters["speedup"] = one / all;
}
void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("KB")->Arg(20)->Arg(100)->Arg(500)->Arg(2000)->Arg(4000);
  bench->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(1);
}
BENCHMARK_CAPTURE(under_way, gloo, std::string("gloo"))->Apply(sizes);
BENCHMARK_CAPTURE(under_way, mpi, std::string("mpi"))->Apply(sizes);

void encrypted(benchmark::State& state, const std::string& backend) {
  const std::size_t bytes = static_cast<std::size_t>(state.range(0)) << 10;
  const std::size_t part = std::min<std::size_t>(bytes, 1 << 20);
  const int passes = bytes < (1 << 20) ? 100 : 8;
  Medians medians;
  for (auto _ : state) {
    medians = alternate({9, [&] { return measure(connect_deft(backend, 3, true), bytes, part, passes); },
                         [&] { return measure(connect_deft(backend, 3), bytes, part, passes); }});
    state.SetIterationTime(medians.first_ms / 1e3);
  }
  state.counters["plain_ms"] = medians.second_ms;
  state.counters["slowdown"] = 1 / medians.speedup;
  state.counters["cpu"] = medians.first_cpu_ms;
  state.counters["plain_cpu"] = medians.second_cpu_ms;
}
void encrypted_sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("KB")->Arg(4)->Arg(64)->Arg(1024)->Arg(16 << 10);
  bench->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(1);
}
BENCHMARK_CAPTURE(encrypted, gloo, std::string("gloo"))->Apply(encrypted_sizes);
BENCHMARK_CAPTURE(encrypted, tcp, std::string("tcp"))->Apply(encrypted_sizes);

void cipher(benchmark::State& state, CipherKind kind, bool opens) {
  if (kind == CipherKind::kAes256Gcm && !has_aes()) return state.SkipWithError("this processor has no AES");
  TrafficKey key;
  key.kind = kind;
  RecordWriter writer(key);
  const std::vector<std::byte> text(kRecordsAtOnce * kRecordTextBytes);
  if (!opens) {
    for (auto _ : state) {
      writer.seal(text.size());
      writer.sent(writer.pending().size());
    }
  } else {
    RecordReader reader(key);
    for (auto _ : state) {
      state.PauseTiming();
      writer.seal(text.size());
      std::ranges::copy(writer.pending(), reader.space().begin());
      const std::size_t bytes = writer.pending().size();
      writer.sent(bytes);
      state.ResumeTiming();
      value_or_exit(reader.add(bytes));
      reader.taken(text.size());
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations() * text.size()));
}
BENCHMARK_CAPTURE(cipher, aes_seal, CipherKind::kAes256Gcm, false);
BENCHMARK_CAPTURE(cipher, aes_open, CipherKind::kAes256Gcm, true);
BENCHMARK_CAPTURE(cipher, chacha_seal, CipherKind::kChaCha20Poly1305, false);
BENCHMARK_CAPTURE(cipher, chacha_open, CipherKind::kChaCha20Poly1305, true);

// By turns; the best of three medians.
void urgent(benchmark::State& state) {
  double alike = 1e9;
  double first = 1e9;
  for (auto _ : state) {
    for (int turn = 0; turn < 3; ++turn) {
      alike = std::min(alike, small_behind_large_ms(16 << 20, 1, 9));
      first = std::min(first, small_behind_large_ms(16 << 20, 0, 9));
    }
    state.SetIterationTime(first / 1e3);
  }
  state.counters["alike_ms"] = alike;
}
BENCHMARK(urgent)->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(1);

}  // namespace
}  // namespace deft::link

BENCHMARK_MAIN();
