// Matrices as low-rank factors, through the coding map and transfers of several nodes, without a network: plans that cut otherwise,
// generations under way together, values that are not finite, replays.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>

#include "core/compress/registry.h"
#include "daemon/channel/coded_transfer.h"
#include "daemon/node/coding_map.h"

namespace deft::daemon {
namespace {

using link::WorkRequest;

struct Cut {                         // a launch
  std::size_t first = 0, count = 0;  // elements of the slot
  model::CodecIndex codec = 1;
};

// One node's part of a launch.
struct Flight {
  std::shared_ptr<const Codings> codings;
  std::unique_ptr<CodedTransfer> coded;  // null: it travels as it is
  std::vector<WorkRequest> requests;
};

// All nodes of a job that trains two matrices, a bias and a kernel of a convolution. A generation is a list of launches.
class Job {
 public:
  Job(std::size_t nodes, const std::string& codec, std::uint32_t slots = 1) : nodes_(nodes) {
    const std::vector<model::TensorSpec> specs = {{"a", model::DType::kFloat32, {70, 101}, 0},
                                                  {"bias", model::DType::kFloat32, {60}, 1},
                                                  {"kernel", model::DType::kFloat32, {32, 16, 3, 3}, 2},
                                                  {"b", model::DType::kFloat32, {64, 64}, 3}};
    const auto layout = model::lay_out(specs, slots).value();
    elements_ = layout.regions[0].bytes / sizeof(float);
    for (std::size_t i = 0; i < specs.size(); ++i)
      places_.push_back({layout.tensors[i].offset / sizeof(float), specs[i].elements()});
    const CodecPointer made = compress::make_codec(codec).value();
    for (Node& node : nodes_) node.map = CodingMap(specs, layout, {{nullptr, made}}, 16 << 10, 42);
  }

  [[nodiscard]] std::size_t size() const { return nodes_.size(); }
  [[nodiscard]] std::size_t elements() const { return elements_; }
  [[nodiscard]] const link::Range& place(std::size_t tensor) const { return places_[tensor]; }
  std::vector<float>& values(std::size_t node, std::uint64_t generation) { return nodes_[node].values[generation]; }
  std::vector<Flight>& flights(std::size_t node, std::uint64_t generation) { return nodes_[node].flights[generation]; }

  // Padding stays zero.
  void bring(std::uint64_t generation, const std::function<float(std::size_t node, std::size_t element)>& value) {
    for (std::size_t node = 0; node < size(); ++node) {
      auto& values = nodes_[node].values[generation];
      values.assign(elements_, 0.0F);
      for (const link::Range& range : places_)
        for (std::size_t i = range.first; i < range.first + range.count; ++i) values[i] = value(node, i);
    }
  }
  void bring_noise(std::uint64_t generation) {
    std::mt19937_64 random(generation + 1);
    std::normal_distribution<float> normal;
    bring(generation, [&](std::size_t, std::size_t) { return normal(random); });
  }
  // In the leader's order.
  void order(std::uint64_t generation, const std::vector<Cut>& cuts) {
    cuts_[generation] = cuts;
    for (Node& node : nodes_) {
      auto& flights = node.flights[generation];
      flights.clear();
      for (const Cut& cut : cuts)
        flights.push_back(
            {node.map.codings_of(cut.first * sizeof(float), cut.count * sizeof(float), generation, cut.codec),
             nullptr,
             {}});
    }
  }
  void make(std::size_t node, std::uint64_t generation) {
    const NodeOfAll place{static_cast<std::uint32_t>(node), static_cast<std::uint32_t>(size())};
    for (std::size_t i = 0; i < cuts_[generation].size(); ++i) {
      Flight& flight = nodes_[node].flights[generation][i];
      if (flight.codings == nullptr) continue;
      flight.coded = std::make_unique<CodedTransfer>(
          flight.codings, std::as_writable_bytes(values_of(node, generation, i)), place, nodes_[node].buffers);
    }
  }
  void encode(std::size_t node, std::uint64_t generation) {
    make(node, generation);
    for (Flight& flight : nodes_[node].flights[generation])
      if (flight.coded != nullptr) {
        ASSERT_TRUE(flight.coded->encode());
        flight.coded->keep_own();
      }
  }

  // What a link does: a sum is made once, and all nodes have its bits.
  void exchange(std::uint64_t generation) {
    exchange_first(generation);
    for (std::size_t i = 0; i < cuts_[generation].size(); ++i) {
      const auto& coded = nodes_[0].flights[generation][i].coded;
      if (coded != nullptr && coded->has_second_requests()) {
        for (Node& node : nodes_) take_second(node.flights[generation][i]);
        sum_requests(generation, i);
      }
    }
  }
  void exchange_first(std::uint64_t generation) {
    for (std::size_t i = 0; i < cuts_[generation].size(); ++i) {
      if (nodes_[0].flights[generation][i].coded == nullptr) {
        std::vector<std::span<float>> all;
        for (std::size_t node = 0; node < size(); ++node) all.push_back(values_of(node, generation, i));
        sum(all);
        continue;
      }
      for (Node& node : nodes_) node.flights[generation][i].requests = node.flights[generation][i].coded->requests();
      sum_requests(generation, i);
    }
  }
  static void take_second(Flight& flight) { flight.requests = flight.coded->second_requests(); }
  void decode(std::size_t node, std::uint64_t generation, bool first_time = true) {
    for (Flight& flight : nodes_[node].flights[generation]) {
      if (flight.coded == nullptr) continue;
      ASSERT_TRUE(flight.coded->decode(first_time));
    }
  }
  void run(std::uint64_t generation, const std::vector<Cut>& cuts) {
    order(generation, cuts);
    for (std::size_t node = 0; node < size(); ++node) encode(node, generation);
    exchange(generation);
    for (std::size_t node = 0; node < size(); ++node) decode(node, generation);
  }

  [[nodiscard]] bool replicas_are_equal(std::uint64_t generation) {
    const auto& first = nodes_[0].values[generation];
    return std::ranges::all_of(nodes_, [&](Node& node) {
      return std::memcmp(node.values[generation].data(), first.data(), elements_ * sizeof(float)) == 0;
    });
  }
  [[nodiscard]] std::vector<float> residuals(std::size_t node) {
    for (const auto& [generation, flights] : nodes_[node].flights)
      for (const Flight& flight : flights)
        if (flight.codings && flight.codings->residuals) {
          const auto use = flight.codings->residuals->use(0, elements_);
          return {use.values().begin(), use.values().end()};
        }
    return std::vector<float>(elements_);
  }

 private:
  struct Node {
    CodingMap map;
    BufferPool buffers;
    std::map<std::uint64_t, std::vector<float>> values;  // of each generation
    std::map<std::uint64_t, std::vector<Flight>> flights;
  };

  [[nodiscard]] std::span<float> values_of(std::size_t node, std::uint64_t generation, std::size_t launch) {
    const Cut& cut = cuts_[generation][launch];
    return std::span(nodes_[node].values[generation]).subspan(cut.first, cut.count);
  }
  void sum_requests(std::uint64_t generation, std::size_t launch) {
    for (std::size_t request = 0; request < nodes_[0].flights[generation][launch].requests.size(); ++request) {
      std::vector<std::span<float>> all;
      for (Node& node : nodes_) {
        const WorkRequest& of_node = node.flights[generation][launch].requests[request];
        ASSERT_EQ(of_node.kind, WorkRequest::Kind::kAllReduce);
        ASSERT_EQ(of_node.dtype, model::DType::kFloat32);
        all.emplace_back(reinterpret_cast<float*>(of_node.data), of_node.count);
      }
      sum(all);
    }
  }
  static void sum(const std::vector<std::span<float>>& all) {
    for (std::size_t i = 0; i < all[0].size(); ++i) {
      float total = 0;
      for (const auto& values : all) total += values[i];
      for (const auto& values : all) values[i] = total;
    }
  }

  std::vector<Node> nodes_;
  std::size_t elements_ = 0;
  std::vector<link::Range> places_;
  std::map<std::uint64_t, std::vector<Cut>> cuts_;
};

// Over all nodes: the applied updates and the residuals add up to the gradients.
class Ledger {
 public:
  explicit Ledger(Job& job) : job_(job), missing_(job.elements()) {}

  void add_brought(std::uint64_t generation) {
    for (std::size_t node = 0; node < job_.size(); ++node) add(job_.values(node, generation), 1);
  }
  void add_applied(std::uint64_t generation) { add(job_.values(0, generation), -1); }
  [[nodiscard]] double lost() const {
    Ledger end = *this;
    for (std::size_t node = 0; node < job_.size(); ++node) end.add(job_.residuals(node), -1);
    double most = 0;
    for (const double missing : end.missing_) most = std::max(most, std::abs(missing));
    return most;
  }

 private:
  void add(const std::vector<float>& values, double sign) {
    for (std::size_t i = 0; i < values.size(); ++i) missing_[i] += sign * static_cast<double>(values[i]);
  }

  Job& job_;
  std::vector<double> missing_;
};

class LowRankTransfer : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] static std::vector<Cut> whole(const Job& job, model::CodecIndex codec = 1) {
    return {{0, job.elements(), codec}};
  }
};
INSTANTIATE_TEST_SUITE_P(Methods, LowRankTransfer, testing::Values("lowrank/rank=2", "lowrank/rank=4,method=powersgd"),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::ranges::replace_if(
                               name, [](char c) { return c == '/' || c == '=' || c == ','; }, '_');
                           return name;
                         });

constexpr std::size_t kBlock = model::kPartAlignBytes / sizeof(float);

std::vector<Cut> random_cuts(std::size_t elements, std::mt19937_64& random) {
  std::vector<Cut> cuts;
  for (std::size_t first = 0; first < elements;) {
    const std::size_t count = std::min(elements - first, (1 + random() % 40) * kBlock);
    const model::CodecIndex codecs[] = {0, 1, 1, 1, 1, model::kWithResiduals};
    cuts.push_back({first, count, codecs[random() % std::size(codecs)]});
    first += count;
  }
  return cuts;
}

// Plans cut and choose as they like, and generations of other slots are under way: some nodes encode the next generation before they
// have decoded this one.
TEST_P(LowRankTransfer, NothingIsLostAndReplicasStayEqualWhateverPlansCut) {
  const std::string codec = GetParam();
  EXPECT_TRUE(rc::check([&codec] {
    const auto nodes = *rc::gen::inRange<std::size_t>(1, 5);
    const auto slots = *rc::gen::inRange<std::uint32_t>(1, 3);
    std::mt19937_64 random(*rc::gen::arbitrary<std::uint64_t>());
    Job job(nodes, codec, slots);
    Ledger ledger(job);
    constexpr std::uint64_t kGenerations = 8;
    std::vector<Cut> cuts;
    for (std::uint64_t generation = 0; generation <= kGenerations; ++generation) {
      if (generation < kGenerations) {
        job.bring_noise(generation);
        ledger.add_brought(generation);
        if (cuts.empty() || random() % 2 == 0) cuts = random_cuts(job.elements(), random);
        job.order(generation, cuts);
      }
      for (std::size_t node = 0; node < nodes; ++node) {
        const bool is_ahead = slots > 1 && generation < kGenerations && random() % 2 == 0;
        if (is_ahead) job.encode(node, generation);
        if (generation > 0) job.decode(node, generation - 1);
        if (!is_ahead && generation < kGenerations) job.encode(node, generation);
      }
      if (generation < kGenerations) job.exchange(generation);
      if (generation == 0) continue;
      RC_ASSERT(job.replicas_are_equal(generation - 1));
      ledger.add_applied(generation - 1);
    }
    RC_ASSERT(ledger.lost() < 1e-3);
  }));
}

TEST_P(LowRankTransfer, SendsFactors) {
  Job job(2, GetParam());
  for (std::uint64_t generation = 0; generation < 2; ++generation) {
    job.bring_noise(generation);
    job.run(generation, whole(job));
    EXPECT_LT(job.flights(0, generation)[0].coded->wire_bytes() * 7, job.elements() * sizeof(float))
        << "of matrices that are small";
    for (std::size_t i = job.place(1).first; i < job.place(1).first + job.place(1).count; ++i)
      EXPECT_EQ(job.residuals(0)[i], 0) << "the bias travels as it is";
  }
}

// The same matrix again and again: what is applied becomes its mean, and the residual stays bounded.
TEST_P(LowRankTransfer, SendsAGradientInTheEnd) {
  Job job(2, GetParam());
  Ledger ledger(job);
  std::vector<float> noise(job.elements());
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  for (float& value : noise) value = normal(random);
  for (std::uint64_t generation = 0; generation < 300; ++generation) {
    job.bring(generation, [&](std::size_t, std::size_t i) { return noise[i]; });
    ledger.add_brought(generation);
    job.run(generation, whole(job));
    ledger.add_applied(generation);
  }
  EXPECT_LT(ledger.lost(), 0.05);
  double left = 0, given = 0;
  for (const float value : job.residuals(0)) left += static_cast<double>(value) * static_cast<double>(value);
  for (const float value : noise) given += static_cast<double>(value) * static_cast<double>(value);
  EXPECT_LT(std::sqrt(left), 60 * std::sqrt(given)) << "of 300 generations";
}

// A gradient of two directions is found by factors that begin where the last generation's ended.
TEST_P(LowRankTransfer, FactorsOfTheGenerationBeforeAreKept) {
  Job job(2, GetParam());
  const link::Range& matrix = job.place(0);
  const auto value = [&](std::size_t, std::size_t i) {
    if (i < matrix.first || i >= matrix.first + matrix.count) return 0.0F;
    const auto row = static_cast<float>((i - matrix.first) / 101),
               column = static_cast<float>((i - matrix.first) % 101);
    return std::sin(row) * std::cos(column) + 0.3F * std::sin(2 * row) * std::sin(3 * column);
  };
  for (std::uint64_t generation = 0; generation < 4; ++generation) {
    job.bring(generation, value);
    job.run(generation, whole(job));
  }
  for (const float left : job.residuals(0)) ASSERT_NEAR(left, 0, 1e-4);
}

TEST_P(LowRankTransfer, AGenerationOfZerosIsNotTheEnd) {
  Job job(2, GetParam());
  for (std::uint64_t generation = 0; generation < 3; ++generation) {
    job.bring(generation, [](std::size_t, std::size_t) { return 0.0F; });
    job.run(generation, whole(job));
    for (const float value : job.values(0, generation)) ASSERT_EQ(value, 0);
  }
  for (std::uint64_t generation = 3; generation < 5; ++generation) {
    job.bring_noise(generation);
    job.run(generation, whole(job));
    for (const std::size_t tensor : {0U, 2U, 3U}) {
      const auto values =
          std::span(job.values(0, generation)).subspan(job.place(tensor).first, job.place(tensor).count);
      EXPECT_TRUE(std::ranges::any_of(values, [](float v) { return v != 0; })) << tensor;
    }
  }
}

TEST_P(LowRankTransfer, WhatIsNotFiniteIsSeenOnAllNodesAndLeavesResiduals) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), 3e38F}) {
    Job job(3, GetParam());
    for (std::uint64_t generation = 0; generation < 3; ++generation) {
      job.bring_noise(generation);
      job.run(generation, whole(job));
    }
    std::vector<std::vector<float>> before;
    for (std::size_t node = 0; node < 3; ++node) before.push_back(job.residuals(node));
    for (const std::uint64_t generation : {3U, 4U}) {
      job.bring_noise(generation);
      const link::Range& matrix = job.place(0);
      for (std::size_t i = 0; i < 40; ++i) job.values(1, generation)[matrix.first + 17 * i] = bad;
      job.run(generation, whole(job));
      ASSERT_TRUE(job.replicas_are_equal(generation));
      for (std::size_t i = 0; i < matrix.count; ++i) {
        ASSERT_TRUE(std::isnan(job.values(2, generation)[matrix.first + i])) << i;
        for (std::size_t node = 0; node < 3; ++node)
          ASSERT_NEAR(job.residuals(node)[matrix.first + i], before[node][matrix.first + i], 1e-4) << i;
      }
      EXPECT_TRUE(std::isfinite(job.values(2, generation)[job.place(3).first])) << "the other matrices are";
    }
    job.bring_noise(5);
    job.run(5, whole(job));
    ASSERT_TRUE(job.replicas_are_equal(5));
    for (const float value : job.values(1, 5)) ASSERT_TRUE(std::isfinite(value));
  }
}

// A link is lost after node 0 has the result, or after it alone has made its second request, if there is one. All replay; node 0 for
// the others' sake if it has the result.
TEST_P(LowRankTransfer, AReplayGivesTheSameBitsAndBooksNothingTwice) {
  for (const bool has_result : {true, false}) {
    Job once(3, GetParam()), again(3, GetParam());
    for (std::uint64_t generation = 0; generation < 4; ++generation) {
      for (Job* const job : {&once, &again}) job->bring_noise(generation);
      once.run(generation, whole(once));
      again.order(generation, whole(again));
      std::vector<ReplayBuffer> kept(3);
      for (std::size_t node = 0; node < 3; ++node) {
        again.make(node, generation);
        CodedTransfer& coded = *again.flights(node, generation)[0].coded;
        ASSERT_TRUE(coded.encode(&kept[node]));
        coded.keep(kept[node]);
      }
      std::vector<float> of_node_0;
      if (has_result) {
        again.exchange(generation);
        again.decode(0, generation);
        of_node_0 = again.values(0, generation);
      } else {
        again.exchange_first(generation);
        Flight& flight = again.flights(0, generation)[0];
        if (flight.coded->has_second_requests()) Job::take_second(flight);
      }
      for (std::size_t node = 0; node < 3; ++node) {
        again.make(node, generation);
        ASSERT_TRUE(again.flights(node, generation)[0].coded->restore(kept[node]));
      }
      again.exchange(generation);
      for (std::size_t node = 0; node < 3; ++node) again.decode(node, generation, node != 0 || !has_result);
      if (has_result) again.values(0, generation) = of_node_0;  // a replay has memory of its own
      for (std::size_t node = 0; node < 3; ++node) {
        ASSERT_EQ(again.values(node, generation), once.values(node, generation)) << node;
        ASSERT_EQ(again.residuals(node), once.residuals(node)) << node;
      }
    }
  }
}

}  // namespace
}  // namespace deft::daemon
