// Encoded transfers of several nodes, without a network: the test carries the codes between them, whole or in segments.
//
//   Nodes nodes(3, "int8", elements, {{0, 1024}}, model::DType::kBFloat16);
//   fill(nodes.values(node), seed);              // float32 whatever the arena's type, which they are rounded to
//   nodes.run(generation, segment_blocks);       // all nodes hold the same sums
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/compress/registry.h"
#include "core/link/work_request.h"
#include "daemon/channel/coded_transfer.h"
#include "tests/daemon/carried_requests.h"

namespace deft::daemon {

inline constexpr std::size_t kBlock = 256;

struct CodedNode {
  std::shared_ptr<Residuals> residuals;
  std::vector<float> values;
  std::vector<std::byte> halves;  // the same, in the type of the arena; unused for float32
  BufferPool buffers;
  std::unique_ptr<CodedTransfer> coded;
  std::vector<link::WorkRequest> requests;
};

class Nodes {
 public:
  // The transfer has these elements; `ranges` are encoded, and the rest travels as it is.
  Nodes(std::size_t nodes, const std::string& codec, std::size_t elements, std::vector<link::Range> ranges,
        model::DType dtype = model::DType::kFloat32)
      : codec_(compress::make_codec(codec).value()),
        elements_(elements),
        ranges_(std::move(ranges)),
        dtype_(dtype),
        nodes_(nodes) {
    for (CodedNode& node : nodes_) {
      node.values.resize(elements);
      if (codec_->traits().uses_feedback) node.residuals = std::make_shared<Residuals>(elements);
    }
  }

  std::vector<float>& values(std::size_t node) { return nodes_[node].values; }
  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] const compress::Codec& codec() const { return *codec_; }

  // `kept`: one for each node; null: a link that is lost is not replaced.
  void encode(std::uint64_t generation, std::vector<ReplayBuffer>* kept = nullptr) {
    for (std::size_t i = 0; i < size(); ++i) {
      make(i, generation);
      ReplayBuffer* const room = kept != nullptr ? &(*kept)[i] : nullptr;
      ASSERT_TRUE(nodes_[i].coded->encode(room));
      if (room != nullptr) nodes_[i].coded->keep(*room);
    }
  }
  // From now on all travels as it is, and takes residuals along; or not any more.
  void go_exact(bool exact) { exact_ = exact; }
  void make(std::size_t node, std::uint64_t generation) {
    auto codings = std::make_shared<Codings>();
    if (exact_)
      codings->settled = ranges_;
    else
      codings->coded.push_back({codec_, ranges_});
    std::size_t at = 0;
    for (const link::Range& range : ranges_) {
      if (at < range.first) codings->exact.push_back({at, range.first - at});
      at = range.first + range.count;
    }
    if (at < elements_) codings->exact.push_back({at, elements_ - at});
    codings->dtype = dtype_;
    codings->slice = {7, generation, 0};
    codings->residuals = nodes_[node].residuals;
    nodes_[node].coded = std::make_unique<CodedTransfer>(
        codings, arena_of(nodes_[node]),
        NodeOfAll{static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(size())}, nodes_[node].buffers);
  }
  CodedTransfer& coded(std::size_t node) { return *nodes_[node].coded; }

  // What a link does. `segment_blocks` 0: everything is sent whole, and everyone is its owner.
  void exchange(std::size_t segment_blocks) {
    for (CodedNode& node : nodes_) node.requests = node.coded->requests();
    for (std::size_t i = 0; i < nodes_[0].requests.size(); ++i) {
      std::vector<link::WorkRequest*> of_nodes;
      for (CodedNode& node : nodes_) of_nodes.push_back(&node.requests[i]);
      carry(of_nodes, segment_blocks);
    }
  }
  Result<void> decode(std::size_t node, bool first_time) {
    auto ok = coded(node).decode(first_time);
    if (const auto* const half = compress::codec_of(dtype_); ok && half != nullptr)
      ok = half->decode({}, nodes_[node].halves, nodes_[node].values);
    return ok;
  }
  Result<void> decode() {
    for (std::size_t node = 0; node < size(); ++node)
      if (auto ok = decode(node, true); !ok) return ok;
    return {};
  }
  void run(std::uint64_t generation, std::size_t segment_blocks) {
    encode(generation);
    exchange(segment_blocks);
    const auto ok = decode();
    ASSERT_TRUE(ok) << ok.error().message();
    for (std::size_t i = 1; i < size(); ++i)
      ASSERT_EQ(std::memcmp(values(i).data(), values(0).data(), elements_ * sizeof(float)), 0) << "node " << i;
  }
  [[nodiscard]] std::vector<double> all_residuals() {
    std::vector<double> sum(elements_, 0);
    for (CodedNode& node : nodes_) {
      if (!node.residuals) continue;
      const auto use = node.residuals->use(0, elements_);
      for (std::size_t i = 0; i < elements_; ++i) sum[i] += static_cast<double>(use.values()[i]);
    }
    return sum;
  }
  [[nodiscard]] std::vector<float> residuals(std::size_t node) {
    if (!nodes_[node].residuals) return std::vector<float>(elements_, 0.0F);
    const auto use = nodes_[node].residuals->use(0, elements_);
    return {use.values().begin(), use.values().end()};
  }
  std::byte* code_of(std::size_t node, std::size_t request) { return nodes_[node].requests[request].data; }
  // The bytes of each node in an all-gather.
  [[nodiscard]] std::size_t block_bytes() const { return nodes_[0].requests[0].block_of.bytes[0]; }
  [[nodiscard]] link::WorkRequest::Kind kind() const { return nodes_[0].requests[0].kind; }
  void take_requests() {
    for (CodedNode& node : nodes_) node.requests = node.coded->requests();
  }

 private:
  // With the values in it.
  std::span<std::byte> arena_of(CodedNode& node) const {
    const auto* const half = compress::codec_of(dtype_);
    if (half == nullptr) return std::as_writable_bytes(std::span(node.values));
    node.halves.resize(elements_ * model::dtype_bytes(dtype_));
    static_cast<void>(half->encode({}, node.values, node.halves));
    return node.halves;
  }

  std::shared_ptr<const compress::Codec> codec_;
  std::size_t elements_;
  std::vector<link::Range> ranges_;
  model::DType dtype_;
  std::vector<CodedNode> nodes_;
  bool exact_ = false;
};

inline void fill(std::vector<float>& values, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 1.0F);
  for (float& value : values) value = normal(random);
}

}  // namespace deft::daemon
