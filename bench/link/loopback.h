// Two nodes, as threads of this process on loopback, that run the same all-reduces in step.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace deft::link {

// All-reduces floats in place.
using AllReduceFunction = std::function<void(float* data, std::size_t count)>;

// Makes the function of `node`; both nodes are made at the same time, each in its own thread.
using Connect = std::function<AllReduceFunction(std::uint32_t node)>;

Connect connect_deft();
Connect connect_bare_gloo();  // gloo::allreduce with its ring, float sums by gloo

struct Cost {
  double wall_ms = 0;          // the best pass
  double cpu_ms_per_node = 0;  // of all threads, the mean of all passes
};

// `passes` times: all-reduces `bytes` in parts of `part` bytes, one after the other.
Cost measure(const Connect& connect, std::size_t bytes, std::size_t part, int passes);

}  // namespace deft::link
