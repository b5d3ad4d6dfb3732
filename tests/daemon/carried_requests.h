// What a link does with one request of each node, without a network. Links cut reductions in different ways, so the test says how.
//
//   carry(requests, segment_blocks);   // requests[node]; 0 blocks: everything is sent whole, and every node is its owner
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "core/link/work_request.h"

namespace deft::daemon {

inline void carry_blocks_to_all(std::span<link::WorkRequest* const> of_nodes) {
  std::size_t at = 0;
  for (std::size_t from = 0; from < of_nodes.size(); ++from) {
    const std::size_t bytes = of_nodes[from]->block_of.bytes[from];
    for (link::WorkRequest* const to : of_nodes)
      if (to != of_nodes[from]) std::memcpy(to->data + at, of_nodes[from]->data + at, bytes);
    at += bytes;
  }
}

// The owner of these elements makes the result, and gives it to the others if they do not make their own.
inline void carry_segment(std::span<link::WorkRequest* const> of_nodes, const std::vector<std::vector<std::byte>>& sent,
                          std::size_t owner, const link::Range& elements, bool gives) {
  const link::WorkRequest& request = *of_nodes[owner];
  const std::size_t width = model::dtype_bytes(request.dtype);
  const std::size_t at = elements.first * width, bytes = elements.count * width;
  std::vector<const std::byte*> inputs;
  for (const auto& of_node : sent) inputs.push_back(of_node.data() + at);
  inputs[owner] = request.data + at;
  const link::OwnedSegment segment{{request.data + at, bytes}, elements.first, inputs, request.dtype, request.op};
  request.owner_stage ? request.owner_stage(segment) : link::add(segment);
  if (!gives || request.kind == link::WorkRequest::Kind::kReduceByAll) return;
  for (link::WorkRequest* const to : of_nodes)
    if (to != &request) std::memcpy(to->data + at, request.data + at, bytes);
}

inline void carry_reduction(std::span<link::WorkRequest* const> of_nodes, std::size_t segment_blocks) {
  std::vector<std::vector<std::byte>> sent;
  for (const link::WorkRequest* const request : of_nodes)
    sent.emplace_back(request->data, request->data + request->bytes());
  const bool whole = segment_blocks == 0;
  for (std::size_t owner = 0; owner < of_nodes.size(); ++owner) {
    const link::WorkRequest& request = *of_nodes[owner];
    const link::Range owned =
        request.owned_by(static_cast<std::uint32_t>(owner), static_cast<std::uint32_t>(of_nodes.size()));
    const link::Range all = whole ? link::Range{0, request.count} : owned;
    const std::size_t step = whole ? request.count : segment_blocks * request.block;
    for (std::size_t at = all.first; at < all.first + all.count; at += step)
      carry_segment(of_nodes, sent, owner, {at, std::min(step, all.first + all.count - at)}, !whole);
  }
}

inline void carry(std::span<link::WorkRequest* const> of_nodes, std::size_t segment_blocks) {
  if (of_nodes.front()->kind == link::WorkRequest::Kind::kAllGather)
    carry_blocks_to_all(of_nodes);
  else
    carry_reduction(of_nodes, segment_blocks);
}

}  // namespace deft::daemon
