// Two nodes, as threads of this process on loopback, that run the same all-reduces in step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace deft::link {

// How a node all-reduces floats in place: what was begun is done after `finish`, if not before.
struct AllReduce {
  std::function<void(float* data, std::size_t count)> begin;
  std::function<void()> finish;
};

// Makes that of `node`; both nodes are made at the same time, each in its own thread.
using Connect = std::function<AllReduce(std::uint32_t node)>;

// `under_way`: how many requests are in flight before it waits for one.
Connect connect_deft(const std::string& backend, std::size_t under_way);
Connect connect_bare_gloo();  // gloo::allreduce with its ring, float sums by gloo

struct Cost {
  double wall_ms = 0;          // the best pass
  double cpu_ms_per_node = 0;  // of all threads, the mean of all passes
};

// `passes` times: all-reduces `bytes` in parts of `part` bytes, one after the other.
Cost measure(const Connect& connect, std::size_t bytes, std::size_t part, int passes);

// How long a small operation takes on a ps link, from its start to its report, behind a large one of `bytes`: the median of
// `rounds`. Its priority is `priority`, the large one's 1.
double small_behind_large_ms(std::size_t bytes, std::uint32_t priority, int rounds);

}  // namespace deft::link
