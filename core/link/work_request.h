// The requests that a link takes, and their completions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/clock.h"
#include "core/link/segment_observer.h"
#include "core/link/slices.h"
#include "core/model/dtype.h"

namespace deft::link {

// A segment of a reduction, on the node that owns it.
struct OwnedSegment {
  std::span<std::byte> data;                   // this node's elements; the result belongs here
  std::size_t first = 0;                       // of the request's elements
  std::span<const std::byte* const> inputs{};  // the same elements of all nodes, in their order
  model::DType dtype{};
  model::ReduceOp op{};
  std::span<const float>
      sum{};  // of encoded elements, in place of the inputs, if that is less to send (EncodedElements)
};

inline constexpr std::size_t kMaxBlockBytes = 4096;  // fits a slot of every link

// The work of an owner between reduce-scatter and all-gather. It must give the same bits wherever it runs: small data is
// owned by every node. Called from the link's threads, for one segment at a time.
using OwnerStage = std::function<void(const OwnedSegment&)>;

// Leaves the reduction of the inputs in the data: the owner's work if a request has no stage of its own.
void add(const OwnedSegment& segment);

// How bytes are encoded, for links whose servers decode, add and encode them (Backend::adds_encoded). An owner's stage is then for
// what the second encoding leaves out: the owner gets what makes the result, and all others get the result.
struct EncodedElements {
  std::size_t block_values = 1;   // float32 in a block
  bool owner_keeps_rest = false;  // the owner's stage has to run
  // What the server has to know of these elements (core/compress/encoded_sum.h). The same on all nodes.
  std::function<std::vector<std::byte>(Range)> recipe;
};

// A collective over `data`, in place.
struct WorkRequest {
  enum class Kind : std::uint8_t {
    kAllReduce,      // `count` elements; the same bits on all nodes
    kReduceScatter,  // the same, but only the elements that this node owns are defined afterwards (Link::owned)
    kAllGather,      // `data` has the blocks of all nodes one behind the other; this node's own is there already
    kBroadcast,      // the `count` bytes of node `root`
    kReduceByAll,    // every node owns all elements: its stage sees those of all nodes, and `data` stays as it is
  };
  Kind kind = Kind::kAllReduce;
  std::byte* data = nullptr;
  std::size_t count = 0;  // elements; of a broadcast, bytes
  model::DType dtype = model::DType::kUInt8;
  model::ReduceOp op = model::ReduceOp::kSum;
  struct Blocks {
    std::vector<std::size_t> bytes = {};  // all-gather: of each node
    std::uint32_t root = 0;               // broadcast: whose block it is
  };
  Blocks block_of = {};  // if nothing is reduced
  std::uint64_t id = 0;  // the caller's, of one request in flight
  // How soon it is needed, 0 first; the same on all nodes. A link may carry urgent requests before older ones, and many
  // links carry all in the order of their submission.
  std::uint32_t priority = 0;
  // Elements that belong together, as the bytes of an encoded block do: owners get whole blocks, at most kMaxBlockBytes each.
  std::size_t block = 1;
  // Stands for add(). Links that do not compose all-reduces (Link::composes) take it for encoded elements and of kReduceByAll alone.
  OwnerStage owner_stage = {};
  std::optional<EncodedElements> encoded = {};     // links that compose all-reduces do without it
  std::shared_ptr<SegmentObserver> observer = {};  // null: nobody wants to know

  static WorkRequest all_reduce(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                std::uint64_t id = 0, std::uint32_t priority = 0);
  static WorkRequest reduce_scatter(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op,
                                    std::uint64_t id = 0, std::uint32_t priority = 0);
  // Sends `bytes` bytes to every other node. `stage` reads the inputs of a segment, and writes elsewhere than to its data.
  static WorkRequest reduce_by_all(std::byte* data, std::size_t bytes, OwnerStage stage);
  static WorkRequest all_gather(std::byte* data, std::vector<std::size_t> block_bytes, std::uint64_t id = 0);
  static WorkRequest broadcast(std::byte* data, std::size_t bytes, std::uint32_t root, std::uint64_t id = 0);

  [[nodiscard]] bool reduces() const { return kind != Kind::kAllGather && kind != Kind::kBroadcast; }
  [[nodiscard]] std::size_t bytes() const;  // of `data`
  // The elements that `node` owns if this is a reduction between `nodes`.
  [[nodiscard]] Range owned_by(std::uint32_t node, std::uint32_t nodes) const;
  // The bytes that each of the `nodes` brings to an all-gather or broadcast, one behind the other in `data`.
  [[nodiscard]] std::vector<std::size_t> blocks(std::uint32_t nodes) const;
};

struct Completion {
  std::uint64_t id = 0;  // of the request
  // Time on the wire, from the end of the previous request. Empty if this request overtook others.
  std::optional<TimeUs> link_us = 0;
  bool overlapped = false;  // it shared the wire with another request
};

}  // namespace deft::link
