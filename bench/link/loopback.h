// Measures all-reduces between two nodes, which are threads of this process on loopback and run the same all-reduces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace deft::link {

// How a node all-reduces floats in place. After `finish` every all-reduce that was begun is done.
struct AllReduce {
  std::function<void(float* data, std::size_t count)> begin;
  std::function<void()> finish;
};

// Makes the AllReduce of `node`. Both nodes are made at the same time, each in its own thread.
using Connect = std::function<AllReduce(std::uint32_t node)>;

// `under_way` requests are in flight before it waits for one.
Connect connect_deft(const std::string& backend, std::size_t under_way, bool encrypts = false);
Connect connect_bare_gloo();  // gloo::allreduce with its ring, float sums by gloo

struct Cost {
  double wall_ms = 0;          // the best pass
  double cpu_ms_per_node = 0;  // the sum of all threads, as the mean of all passes
};

// All-reduces `bytes` in parts of `part` bytes, one after the other; `passes` times.
Cost measure(const Connect& connect, std::size_t bytes, std::size_t part, int passes);

// The time of a small operation on a ps link, from its start to its report, behind a large operation of `bytes` bytes: the
// median of `rounds`. The small operation has the priority `priority`, and the large one has 1.
double small_behind_large_ms(std::size_t bytes, std::uint32_t priority, int rounds);

}  // namespace deft::link
