// A job's gradients through the coding map and transfers of several nodes, without a network. Everything may change between two launches:
// codecs, cuts, types, links that are lost before or after a node has the result, gradients that are not finite, and two generations
// under way together. Whatever happens, over all nodes the applied sums and the residuals make the sum of the gradients, and all nodes
// hold the same bits.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "core/compress/registry.h"
#include "daemon/channel/coded_transfer.h"
#include "daemon/node/coding_map.h"
#include "tests/daemon/carried_requests.h"

namespace deft::daemon {
namespace {

using Random = std::mt19937_64;
using model::DType;

std::vector<model::TensorSpec> tensors() {
  return {{"a", DType::kFloat32, {70, 101}, 0, ""},
          {"bias", DType::kFloat32, {60}, 1, ""},
          {"half", DType::kFloat16, {90, 121}, 2, ""},
          {"kernel", DType::kFloat32, {32, 16, 3, 3}, 3, ""},
          {"own", DType::kFloat32, {5000}, 4, "int4"},
          {"exact", DType::kFloat32, {64, 64}, 5, "none"},
          {"brain", DType::kBFloat16, {64, 128}, 6, "int2"},
          {"small", DType::kFloat16, {9}, 7, ""},
          {"low", DType::kFloat32, {64, 80}, 8, "lowrank/rank=2"}};
}

// All of them keep residuals.
GroupCodecs codecs_of(const std::vector<model::TensorSpec>& specs) {
  GroupCodecs codecs{{nullptr}, own_codecs(specs).value()};
  for (const char* text : {"int8", "int2", "onebit", "efsignsgd", "bf16", "topk/ratio=0.05", "topk/ratio=0.4",
                           "randk/ratio=0.1", "lowrank/rank=2", "lowrank/rank=4,method=powersgd"})
    codecs.of_job.emplace_back(compress::make_codec(text).value());
  return codecs;
}

struct Launch {
  std::uint64_t generation = 0, offset = 0, bytes = 0;
  model::CodecIndex codec = 0;
};

struct Node {
  CodingMap map;
  BufferPool buffers;
  std::map<std::uint64_t, std::vector<std::byte>> slots;  // of each generation
  std::shared_ptr<Residuals> residuals;                   // once a launch has told it
};

// A launch on one node.
struct Part {
  std::shared_ptr<const Codings> codings;  // null: it travels as it is
  std::unique_ptr<CodedTransfer> coded;
  std::vector<std::byte> own;  // in place of the arena, in a replay for the others' sake
  ReplayBuffer kept;
  bool done = false;
};

struct Flight {
  Launch launch;
  std::vector<Part> parts;  // [node]
};

// One value of the arena.
double value_at(std::span<const std::byte> slot, DType dtype, std::size_t offset) {
  float value = 0;
  const auto* const half = compress::codec_of(dtype);
  if (half == nullptr)
    std::memcpy(&value, &slot[offset], sizeof value);
  else
    EXPECT_TRUE(half->decode({}, slot.subspan(offset, 2), {&value, 1}));
  return static_cast<double>(value);
}
void put_value(std::span<std::byte> slot, DType dtype, std::size_t offset, float value) {
  const auto* const half = compress::codec_of(dtype);
  if (half == nullptr)
    std::memcpy(&slot[offset], &value, sizeof value);
  else
    EXPECT_TRUE(half->encode({}, {&value, 1}, slot.subspan(offset, 2)));
}

class Job {
 public:
  Job(std::size_t nodes, std::uint64_t seed)
      : random_(seed), specs_(tensors()), layout_(model::lay_out(specs_, 2).value()), nodes_(nodes) {
    const GroupCodecs codecs = codecs_of(specs_);
    for (Node& node : nodes_) node.map = CodingMap(specs_, layout_, codecs, 16 << 10, 42);
    for (std::size_t t = 0; t < specs_.size(); ++t)
      for (std::size_t i = 0; i < specs_[t].elements(); ++i) {
        const std::size_t width = model::dtype_bytes(specs_[t].dtype);
        const std::size_t offset = layout_.tensors[t].offset + i * width;
        const std::size_t before = model::is_half(specs_[t].dtype) ? layout_.slot_bytes / 4 : 0;
        elements_.push_back({specs_[t].dtype, offset, before + offset / width, 0, 0});
      }
  }

  // Two generations that may be under way together, in any order on each node.
  void run_two(std::uint64_t first) {
    std::vector<Flight> flights;
    for (const std::uint64_t generation : {first, first + 1}) {
      bring(generation);
      for (Launch& launch : cut(generation)) flights.push_back(ordered(launch));
    }
    const bool together = random_() % 2 == 0;
    const std::size_t half = together ? 0 : first_of(flights, first + 1);
    for (const auto& [begin, end] : {std::pair<std::size_t, std::size_t>{0, half}, {half, flights.size()}})
      carry_out(std::span(flights).subspan(begin, end - begin));
    for (const std::uint64_t generation : {first, first + 1}) book(generation);
  }

  // How far the sums and the residuals are from the gradients, beyond what links round off when they add halves. Residuals that were looked
  // at count as used, so it is for the end.
  [[nodiscard]] double lost() {
    std::vector<double> missing;
    for (const Element& element : elements_) missing.push_back(element.missing);
    for (Node& node : nodes_) {
      if (node.residuals == nullptr) continue;
      const auto use = node.residuals->use(0, layout_.slot_bytes / 4 + layout_.slot_bytes / 2);
      for (std::size_t i = 0; i < elements_.size(); ++i)
        missing[i] -= static_cast<double>(use.values()[elements_[i].place]);
    }
    double most = 0;
    for (std::size_t i = 0; i < elements_.size(); ++i)
      most = std::max(most, std::abs(missing[i]) - elements_[i].rounded);
    return most;
  }

 private:
  struct Element {
    DType dtype{};
    std::size_t offset = 0, place = 0;
    double missing = 0;  // brought and not applied
    double rounded = 0;  // that much may be lost
  };

  static std::size_t first_of(const std::vector<Flight>& flights, std::uint64_t generation) {
    const auto at = std::ranges::find(flights, generation, [](const Flight& one) { return one.launch.generation; });
    return static_cast<std::size_t>(at - flights.begin());
  }

  void bring(std::uint64_t generation) {
    std::normal_distribution<float> normal;
    for (Node& node : nodes_) {
      auto& slot = node.slots[generation];
      slot.assign(layout_.slot_bytes, std::byte{});
      for (const Element& element : elements_) put_value(slot, element.dtype, element.offset, normal(random_));
    }
    for (std::uint64_t spoiled = random_() % 3 == 0 ? 1 + random_() % 3 : 0; spoiled > 0; --spoiled) {
      const Element& element = elements_[random_() % elements_.size()];
      const float value = random_() % 2 == 0 ? std::numeric_limits<float>::infinity() : std::nanf("");
      put_value(nodes_[random_() % nodes_.size()].slots[generation], element.dtype, element.offset, value);
    }
    brought_[generation] = sums_of(generation);
  }
  // Over all nodes: the sum of each element, and of its magnitudes.
  [[nodiscard]] std::vector<std::pair<double, double>> sums_of(std::uint64_t generation) {
    std::vector<std::pair<double, double>> sums(elements_.size());
    for (Node& node : nodes_)
      for (std::size_t i = 0; i < elements_.size(); ++i) {
        const double value = value_at(node.slots[generation], elements_[i].dtype, elements_[i].offset);
        sums[i].first += value, sums[i].second += std::abs(value);
      }
    return sums;
  }

  std::vector<Launch> cut(std::uint64_t generation) {
    std::vector<Launch> launches;
    const bool is_settling = random_() % 6 == 0;
    for (const model::Region& region : layout_.regions)
      for (std::uint64_t at = 0; at < region.bytes;) {
        const std::uint64_t most = random_() % 2 == 0 ? region.bytes : model::kPartAlignBytes * (1 + random_() % 40);
        const std::uint64_t bytes = std::min(most, region.bytes - at);
        const auto codec = static_cast<model::CodecIndex>(random_() % nodes_.front().map.codecs());
        launches.push_back({generation, region.offset + at, bytes, is_settling ? model::kWithResiduals : codec});
        at += bytes;
      }
    std::ranges::shuffle(launches, random_);
    return launches;
  }

  Flight ordered(const Launch& launch) {
    Flight flight{launch, std::vector<Part>(nodes_.size())};
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      flight.parts[n].codings = nodes_[n].map.codings_of(launch.offset, launch.bytes, launch.generation, launch.codec);
      if (flight.parts[n].codings != nullptr) nodes_[n].residuals = flight.parts[n].codings->residuals;
    }
    if (flight.parts[0].codings == nullptr)
      note_rounding(launch, {});
    else
      note_rounding(launch, flight.parts[0].codings->coded);
    return flight;
  }
  // Links add halves that no codec encodes.
  void note_rounding(const Launch& launch, const std::vector<Coding>& coded) {
    const auto& sums = brought_[launch.generation];
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      Element& element = elements_[i];
      if (!model::is_half(element.dtype) || element.offset < launch.offset ||
          element.offset >= launch.offset + launch.bytes || !std::isfinite(sums[i].second))
        continue;
      const std::size_t at = (element.offset - launch.offset) / model::dtype_bytes(element.dtype);
      const auto holds = [at](const link::Range& range) { return at >= range.first && at < range.first + range.count; };
      if (std::ranges::any_of(coded, [&](const Coding& one) { return std::ranges::any_of(one.ranges, holds); }))
        continue;
      // A residual may make the sums larger than the gradients.
      element.rounded += std::ldexp((sums[i].second + 30) * static_cast<double>(nodes_.size()),
                                    element.dtype == DType::kFloat16 ? -11 : -8);
    }
  }

  void carry_out(std::span<Flight> flights) {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      std::vector<std::size_t> order(flights.size());
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::ranges::shuffle(order, random_);
      for (const std::size_t i : order) encode(flights[i], n);
    }
    for (Flight& flight : flights) {
      exchange(flight, random_() % 3 != 0);
      if (random_() % 2 == 0) lose_link(flight);
      for (std::size_t n = 0; n < nodes_.size(); ++n) decode(flight, n);
    }
  }

  [[nodiscard]] std::span<std::byte> arena(const Flight& flight, std::size_t node) {
    return std::span(nodes_[node].slots[flight.launch.generation]).subspan(flight.launch.offset, flight.launch.bytes);
  }
  void make(Flight& flight, std::size_t n) {
    Part& part = flight.parts[n];
    const NodeOfAll place{static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(nodes_.size())};
    const std::span<std::byte> memory = part.done ? std::span(part.own) : arena(flight, n);
    part.coded = std::make_unique<CodedTransfer>(part.codings, memory, place, nodes_[n].buffers);
  }
  void encode(Flight& flight, std::size_t n) {
    Part& part = flight.parts[n];
    if (part.codings == nullptr) return;
    make(flight, n);
    ASSERT_TRUE(part.coded->encode(&part.kept));
    part.coded->keep(part.kept);
  }
  // A link that is lost may not come to the second requests.
  void exchange(Flight& flight, bool whole) {
    const std::size_t segment = random_() % 2 == 0 ? 0 : 50;
    if (flight.parts[0].codings == nullptr) return carry_as_it_is(flight, segment);
    carry_requests(flight, segment, [](CodedTransfer& coded) { return coded.requests(); });
    if (!flight.parts[0].coded->has_second_requests()) return;
    if (!whole) return lose_link(flight);
    carry_requests(flight, segment, [](CodedTransfer& coded) { return coded.second_requests(); });
  }
  template <typename Take>
  void carry_requests(Flight& flight, std::size_t segment, const Take& take) {
    std::vector<std::vector<link::WorkRequest>> of_nodes;
    for (Part& part : flight.parts) of_nodes.push_back(take(*part.coded));
    for (std::size_t i = 0; i < of_nodes[0].size(); ++i) {
      std::vector<link::WorkRequest*> requests;
      for (auto& of_node : of_nodes) requests.push_back(&of_node.at(i));
      carry(requests, segment);
    }
  }
  void carry_as_it_is(Flight& flight, std::size_t segment) {
    const auto region = std::ranges::find_if(
        layout_.regions, [&](const model::Region& one) { return one.contains(flight.launch.offset); });
    std::vector<link::WorkRequest> of_nodes;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const auto bytes = arena(flight, n);
      of_nodes.push_back(link::WorkRequest::all_reduce(bytes.data(), bytes.size() / model::dtype_bytes(region->dtype),
                                                       region->dtype, model::ReduceOp::kSum));
    }
    std::vector<link::WorkRequest*> requests;
    for (auto& request : of_nodes) requests.push_back(&request);
    carry(requests, segment);
  }
  // Perhaps after some nodes have the result: they run it again for the others.
  void lose_link(Flight& flight) {
    if (flight.parts[0].codings == nullptr) return;
    const bool is_complete = !flight.parts[0].coded->has_second_requests();
    for (std::size_t n = 0; n < nodes_.size(); ++n)
      if (is_complete && random_() % 2 == 0) decode(flight, n);
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      flight.parts[n].own.assign(flight.launch.bytes, std::byte{0x55});
      make(flight, n);
      ASSERT_TRUE(flight.parts[n].coded->restore(flight.parts[n].kept));
    }
    exchange(flight, true);
  }
  void decode(Flight& flight, std::size_t n) {
    Part& part = flight.parts[n];
    if (part.codings == nullptr) return;
    const auto ok = part.coded->decode(!std::exchange(part.done, true));
    ASSERT_TRUE(ok) << ok.error().message();
  }

  // A sum that is not finite is no update.
  void book(std::uint64_t generation) {
    const auto& applied = nodes_[0].slots[generation];
    for (const Node& node : nodes_) ASSERT_EQ(node.slots.at(generation), applied) << "replicas differ";
    std::vector<std::byte> padding = applied;
    for (std::size_t i = 0; i < elements_.size(); ++i) {
      Element& element = elements_[i];
      const double sum = value_at(applied, element.dtype, element.offset);
      if (std::isfinite(sum)) element.missing += brought_[generation][i].first - sum;
      std::fill_n(&padding[element.offset], model::dtype_bytes(element.dtype), std::byte{});
    }
    ASSERT_TRUE(std::ranges::all_of(padding, [](std::byte byte) { return byte == std::byte{}; })) << "padding";
    brought_.erase(generation);
    for (Node& node : nodes_) node.slots.erase(generation);
  }

  Random random_;
  const std::vector<model::TensorSpec> specs_;
  const model::ArenaLayout layout_;
  std::vector<Node> nodes_;
  std::vector<Element> elements_;
  std::map<std::uint64_t, std::vector<std::pair<double, double>>> brought_;
};

RC_GTEST_PROP(LedgerOfSwitches, HoldsWhateverChangesBetweenTwoLaunches, ()) {
  Job job(*rc::gen::inRange<std::size_t>(2, 5), *rc::gen::arbitrary<std::uint64_t>());
  const auto generations = *rc::gen::inRange<std::uint64_t>(1, 5) * 2;
  for (std::uint64_t generation = 0; generation < generations; generation += 2) {
    job.run_two(generation);
    RC_ASSERT(!testing::Test::HasFailure());
  }
  RC_ASSERT(job.lost() < 2e-3);  // gradients are about 1 each
}

}  // namespace
}  // namespace deft::daemon
