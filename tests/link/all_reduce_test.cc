#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "core/link/backends.h"
#include "core/reduce/reduce.h"
#include "tests/link/backends.h"

namespace deft::link::testing {
namespace {

using model::DType;
using model::ReduceOp;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16,
                             DType::kInt32,   DType::kInt64,   DType::kUInt8,   DType::kInt8};

struct Shape {
  std::size_t count;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
};

// What `node` contributes: a prime number of random words, again and again. Finite in every floating type: which of two NaNs
// a sum gives is the compiler's choice, and reduce_test has NaNs.
Bytes random_bytes(std::size_t bytes, std::uint32_t node, std::uint64_t seed) {
  constexpr std::uint64_t kFinite = 0xbfff'bfff'bfff'bfff;
  constexpr std::size_t kPeriod = 8191 * sizeof(std::uint64_t);
  std::mt19937_64 random(seed * 1009 + node);
  Bytes data(bytes);
  const std::size_t first = std::min(bytes, kPeriod);
  std::size_t i = 0;
  for (; i + 8 <= first; i += 8) {
    const std::uint64_t word = random() & kFinite;
    std::memcpy(&data[i], &word, 8);
  }
  for (; i < first; ++i) data[i] = static_cast<std::byte>(random() & 0xbf);
  repeat(data.data(), bytes, first);
  return data;
}

// An operation: what each node contributes, and what all of them have to get.
struct Operation {
  std::vector<Bytes> inputs;
  Bytes result;
};

// The reduction in the order of the nodes, by the local reduction, which has its own tests against an oracle.
Operation make_operation(std::uint32_t nodes, const Shape& shape, std::uint64_t seed) {
  const std::size_t bytes = shape.count * model::dtype_bytes(shape.dtype);
  Operation made{{}, Bytes(bytes)};
  std::vector<const std::byte*> pointers;
  for (std::uint32_t node = 0; node < nodes; ++node) made.inputs.push_back(random_bytes(bytes, node, seed));
  for (const Bytes& input : made.inputs) pointers.push_back(input.data());
  reduce::reduce(made.result.data(), pointers, shape.count, shape.dtype, shape.op);
  return made;
}

// Operations by their seed, each made once for all nodes, which takes long under a sanitizer, and dropped after the last.
class Operations {
 public:
  std::shared_ptr<const Operation> take(std::uint32_t nodes, const Shape& shape, std::uint64_t seed) {
    const std::lock_guard lock(mutex_);
    Taken& taken = taken_[seed];
    if (!taken.operation) taken.operation = std::make_shared<Operation>(make_operation(nodes, shape, seed));
    std::shared_ptr<const Operation> operation = taken.operation;
    if (++taken.nodes == nodes) taken_.erase(seed);
    return operation;
  }

 private:
  struct Taken {
    std::shared_ptr<const Operation> operation;
    std::uint32_t nodes = 0;
  };

  std::mutex mutex_;
  std::map<std::uint64_t, Taken> taken_;
};

class AllReduce : public BackendTest {
 protected:
  void run(Link& link, std::uint32_t node, std::uint32_t nodes, const Shape& shape, std::uint64_t seed) {
    const auto operation = operations_.take(nodes, shape, seed);
    Bytes data = operation->inputs[node];
    ASSERT_OK(all_reduce(link, data.data(), shape.count, shape.dtype, shape.op));
    ASSERT_TRUE(same(data, operation->result))
        << shape.count << " x " << to_string(shape.dtype) << " on " << nodes << " nodes, node " << node;
  }

  Operations operations_;
};
INSTANTIATE_TEST_SUITE_P(Links, AllReduce, ::testing::ValuesIn(backends()), name_of);

TEST_P(AllReduce, GivesTheBitsOfTheReductionInNodeOrderForEveryTypeAndOperation) {
  for (const std::uint32_t nodes : {2U, 3U, 4U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      std::uint64_t seed = 0;
      for (const DType dtype : kDTypes) {
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
          for (const std::size_t count : {std::size_t{5}, std::size_t{40'009}}) {
            run(link, node, nodes, {count, dtype, op}, ++seed);
          }
        }
      }
    });
  }
}

TEST_P(AllReduce, WorksForEverySizeFromOneElement) {
  for (const std::uint32_t nodes : {2U, 3U, 4U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      for (std::size_t count = 1; count <= 40; ++count) run(link, node, nodes, {count, DType::kInt8}, count);
      for (const std::size_t count : {1009, 5461, 5462, 8191, 16384, 16385, 65536, 65537, 262143, 1'000'003}) {
        run(link, node, nodes, {count}, count);
      }
    });
  }
}

#if defined(__SANITIZE_THREAD__)
constexpr std::size_t kManyBytes = 16 << 20;  // ThreadSanitizer takes ten times as long
#else
constexpr std::size_t kManyBytes = 64 << 20;
#endif

// So many bytes of floats that are `add` and `factor` times 0, 1, ... 4095, and again.
Bytes many_floats(float factor, float add) {
  constexpr std::size_t kPeriod = 4096;
  std::array<float, kPeriod> first{};
  for (std::size_t i = 0; i < kPeriod; ++i) first[i] = factor * static_cast<float>(i) + add;
  Bytes data(kManyBytes);
  std::memcpy(data.data(), first.data(), sizeof(first));
  repeat(data.data(), data.size(), sizeof(first));
  return data;
}

TEST_P(AllReduce, CarriesManyMegabytesInOneOperation) {
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    Bytes data = many_floats(1, static_cast<float>(node));
    ASSERT_OK(all_reduce(link, data.data(), data.size() / sizeof(float), DType::kFloat32, ReduceOp::kSum));
    EXPECT_TRUE(same(data, many_floats(2, 1)));
  });
}

TEST_P(AllReduce, RunsManyOperationsOfMixedSizesWithNodesOfUnequalSpeed) {
  for (const std::uint32_t nodes : {2U, 3U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      std::mt19937_64 sizes(7);
      std::mt19937_64 naps(node);
      for (std::uint64_t i = 0; i < 150; ++i) {
        const std::size_t count = std::size_t{1} << (sizes() % 17);
        if (naps() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(naps() % 2000));
        run(link, node, nodes, {count + sizes() % count, kDTypes[sizes() % 8]}, i);
      }
    });
  }
}

TEST_P(AllReduce, GivesTheSameBitsHoweverTheDataIsCutIntoParts) {
  constexpr std::size_t kCount = 200'003;
  const Shape shape{kCount, DType::kBFloat16};
  const Operation whole = make_operation(3, shape, 1);
  on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
    for (const std::size_t part : {std::size_t{777}, std::size_t{50'000}}) {
      Bytes data = whole.inputs[node];
      for (std::size_t first = 0; first < kCount; first += part) {
        const std::size_t count = std::min(part, kCount - first);
        ASSERT_OK(all_reduce(link, data.data() + first * 2, count, shape.dtype, shape.op));
      }
      ASSERT_TRUE(same(data, whole.result));
    }
  });
}

TEST_P(AllReduce, TouchesNothingBesideItsElements) {
  on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{100'003}}) {
      Bytes data(count + 128, std::byte{1});
      ASSERT_OK(all_reduce(link, data.data() + 64, count, DType::kInt8, ReduceOp::kSum));
      for (std::size_t i = 0; i < data.size(); ++i) {
        ASSERT_EQ(data[i], std::byte{static_cast<unsigned char>(i >= 64 && i < 64 + count ? 2 : 1)}) << i;
      }
    }
  });
}

TEST_P(AllReduce, SeveralLinksWorkAtOnce) {
  std::vector<std::thread> links;
  for (std::uint64_t which = 0; which < 3; ++which) {
    links.emplace_back([&, which] {
      on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
        for (std::uint64_t i = 0; i < 20; ++i) run(link, node, 2, {30'011 + 1000 * which}, i * 3 + which);
      });
    });
  }
  for (std::thread& link : links) link.join();
}

TEST_P(AllReduce, OfNothingOrOnOneNodeIsDoneAtOnce) {
  on_nodes(GetParam(), 1, [&](std::uint32_t, Link& link) {
    float value = 3;
    ASSERT_OK(all_reduce(link, reinterpret_cast<std::byte*>(&value), 1, DType::kFloat32, ReduceOp::kSum));
    EXPECT_EQ(value, 3);
  });
  on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
    ASSERT_OK(all_reduce(link, nullptr, 0, DType::kFloat32, ReduceOp::kSum));
  });
}

TEST_P(AllReduce, RefusesATypeThatDoesNotExist) {
  on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
    std::byte data{};
    const auto result = all_reduce(link, &data, 1, static_cast<DType>(99), ReduceOp::kSum);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::kInvalid);
  });
}

TEST_P(AllReduce, AReduceScatterGivesEachNodeTheSameBitsOfItsOwnElements) {
  for (const std::uint32_t nodes : {2U, 3U, 4U}) {
    std::atomic<std::size_t> owned_elements{0};
    constexpr std::array<std::size_t, 6> kCounts{1, 5, 1009, 40'009, 262'143, 1'000'003};
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      for (std::size_t i = 0; i < kCounts.size(); ++i) {
        const Shape shape{kCounts[i], kDTypes[i % std::size(kDTypes)]};
        const auto operation = operations_.take(nodes, shape, i);
        Bytes data = operation->inputs[node];
        const auto request = WorkRequest::reduce_scatter(data.data(), shape.count, shape.dtype, shape.op);
        ASSERT_OK(link.run(request));
        const Range owned = link.owned(request);
        const std::size_t element = model::dtype_bytes(shape.dtype);
        ASSERT_EQ(std::memcmp(data.data() + owned.first * element, operation->result.data() + owned.first * element,
                              owned.count * element),
                  0)
            << shape.count << " x " << to_string(shape.dtype) << " on " << nodes << " nodes, node " << node;
        owned_elements += owned.count;
      }
    });
    EXPECT_EQ(owned_elements, std::accumulate(kCounts.begin(), kCounts.end(), std::size_t{0}));
  }
}

TEST_P(AllReduce, TheOwnersStageStandsForTheAddition) {
  for (const std::size_t count : {std::size_t{1000}, std::size_t{300'007}}) {
    std::atomic<std::size_t> staged{0};
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      std::vector<std::int32_t> data(count);
      for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::int32_t>(i + node);
      auto request =
          WorkRequest::all_reduce(reinterpret_cast<std::byte*>(data.data()), count, DType::kInt32, ReduceOp::kSum);
      request.owner_stage = [&](const OwnedSegment& segment) {
        add(segment);
        auto* const values = reinterpret_cast<std::int32_t*>(segment.data.data());
        const std::size_t size = segment.data.size() / sizeof(std::int32_t);
        for (std::size_t i = 0; i < size; ++i) values[i] -= static_cast<std::int32_t>(segment.first + i);
        staged += size;
      };
      const auto result = link.run(request);
      if (!link.composes()) {
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().kind, ErrorKind::kInvalid);
        return;
      }
      ASSERT_OK(result);
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(data[i], static_cast<std::int32_t>(2 * i + 3)) << i;
    });
    const bool native = GetParam().name == "ps" || GetParam().name == "nccl";
    // Every element once, or once on each node if all is sent whole.
    EXPECT_TRUE(staged == (native ? 0 : count) || (count == 1000 && staged == 3 * count)) << staged;
  }
}

TEST_P(AllReduce, TheTableOfBackendsSaysWhetherALinkComposes) {
  on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
    const std::string backend = link.name().substr(0, link.name().find(':'));
    const auto* const row = find_backend(backend);
    ASSERT_NE(row, nullptr) << link.name();
    EXPECT_EQ(link.composes(), row->composes) << link.name();
  });
}

// Blocks of 260 bytes: a count, and 256 numbers. Only whole blocks can be added.
TEST_P(AllReduce, AnOwnerGetsWholeBlocks) {
  constexpr std::size_t kBlock = 260;
  for (const std::size_t blocks : {std::size_t{1}, std::size_t{7}, std::size_t{500}, std::size_t{9001}}) {
    on_nodes(GetParam(), 3, [&](std::uint32_t node, Link& link) {
      if (!link.composes()) return;
      std::vector<std::uint8_t> data(blocks * kBlock);
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = i % kBlock < 4 ? static_cast<std::uint8_t>(1 + node) : static_cast<std::uint8_t>(i / kBlock + node);
      auto request = WorkRequest::all_reduce(reinterpret_cast<std::byte*>(data.data()), data.size(), DType::kUInt8,
                                             ReduceOp::kSum);
      request.block = kBlock;
      std::atomic<bool> is_whole = true;
      request.owner_stage = [&](const OwnedSegment& segment) {
        if (segment.first % kBlock != 0 || segment.data.size() % kBlock != 0) is_whole = false;
        add(segment);
      };
      ASSERT_OK(link.run(request));
      EXPECT_TRUE(is_whole);
      for (std::size_t i = 0; i < data.size(); ++i)
        ASSERT_EQ(data[i], i % kBlock < 4 ? 6 : static_cast<std::uint8_t>(3 * (i / kBlock) + 3)) << i;
      const Range owned = link.owned(request);
      EXPECT_EQ(owned.first % kBlock, 0U);
    });
  }
}

// What `node` brings to the request `number`.
Bytes brought_to_all(std::size_t bytes, std::uint32_t node, std::uint64_t number) {
  return random_bytes(bytes, node, 5'000 + number);
}

// A request that every node adds, and what its stage has seen so far: the elements of all nodes, one behind the other.
struct AddedByAll {
  AddedByAll(std::size_t bytes, std::uint32_t node, std::uint32_t nodes, std::uint64_t number)
      : data(brought_to_all(bytes, node, number)), seen(nodes, Bytes(bytes)) {}

  WorkRequest request(std::size_t block = 1) {
    auto made = WorkRequest::reduce_by_all(data.data(), data.size(), [this, block](const OwnedSegment& segment) {
      is_whole &= segment.first % block == 0 && segment.data.size() % block == 0;
      for (std::size_t node = 0; node < segment.inputs.size(); ++node)
        std::copy_n(segment.inputs[node], segment.data.size(),
                    seen[node].begin() + static_cast<std::ptrdiff_t>(segment.first));
    });
    made.block = block;
    return made;
  }
  void expect_all(std::uint32_t own, std::uint64_t number) const {
    EXPECT_TRUE(is_whole) << "blocks were cut";
    EXPECT_TRUE(same(data, brought_to_all(data.size(), own, number))) << "the data stays as it is";
    for (std::uint32_t node = 0; node < seen.size(); ++node)
      EXPECT_TRUE(same(seen[node], brought_to_all(data.size(), node, number)))
          << data.size() << " bytes of node " << node;
  }

  Bytes data;
  std::vector<Bytes> seen;
  bool is_whole = true;
};

TEST_P(AllReduce, WhatAllNodesAddIsShownToEachOfThemAndStays) {
  for (const std::uint32_t nodes : {2U, 3U}) {
    on_nodes(GetParam(), nodes, [&](std::uint32_t node, Link& link) {
      std::uint64_t number = 0;
      for (const std::size_t blocks : {1U, 60U, 256U, 1'000U, 9'001U}) {
        AddedByAll all(blocks * 258, node, nodes, ++number);
        const auto result = link.run(all.request(258));
        if (GetParam().name == "nccl") {
          ASSERT_FALSE(result);
          EXPECT_EQ(result.error().kind, ErrorKind::kInvalid);
          return;
        }
        ASSERT_OK(result);
        all.expect_all(node, number);
      }
    });
  }
}

// They share the wire with all-reduces, and small ones overtake.
TEST_P(AllReduce, WhatAllNodesAddTravelsBesideAllReduces) {
  if (GetParam().name == "nccl") return;
  on_nodes(GetParam(), 2, [&](std::uint32_t node, Link& link) {
    constexpr std::uint64_t kRequests = 60;
    std::vector<std::unique_ptr<AddedByAll>> all;
    std::vector<std::vector<std::int32_t>> sums;
    std::mt19937_64 sizes(3);
    for (std::uint64_t i = 0; i < kRequests; ++i) {
      const std::size_t count = std::size_t{1} << (8 + sizes() % 12);
      all.push_back(std::make_unique<AddedByAll>(count, node, 2, i));
      sums.emplace_back(count, static_cast<std::int32_t>(node + i));
    }
    for (std::uint64_t i = 0; i < kRequests; ++i) {
      WorkRequest by_all = all[i]->request();
      by_all.id = 2 * i;
      ASSERT_OK(link.submit(std::move(by_all)));
      ASSERT_OK(link.submit(WorkRequest::all_reduce(reinterpret_cast<std::byte*>(sums[i].data()), sums[i].size(),
                                                    DType::kInt32, ReduceOp::kSum, 2 * i + 1)));
    }
    for (std::uint64_t ended = 0; ended < 2 * kRequests; ++ended) {
      const auto done = link.poll();
      ASSERT_TRUE(done && *done);
    }
    for (std::uint64_t i = 0; i < kRequests; ++i) {
      all[i]->expect_all(node, i);
      ASSERT_EQ(sums[i], std::vector(sums[i].size(), static_cast<std::int32_t>(2 * i + 1))) << i;
    }
  });
}

TEST_P(AllReduce, RefusesToShowAllNodesWhatNobodyLooksAt) {
  on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
    Bytes data(64);
    const auto refused = [&](const WorkRequest& wrong) {
      const auto result = link.run(wrong);
      return !result && result.error().kind == ErrorKind::kInvalid;
    };
    EXPECT_TRUE(refused(WorkRequest::reduce_by_all(data.data(), data.size(), {})));
    auto floats = WorkRequest::reduce_by_all(data.data(), data.size() / 4, [](const OwnedSegment&) {});
    floats.dtype = DType::kFloat32;
    EXPECT_TRUE(refused(floats));
  });
}

TEST_P(AllReduce, RefusesABlockThatFitsNoSlot) {
  on_nodes(GetParam(), 2, [&](std::uint32_t, Link& link) {
    std::vector<std::byte> data(8192);
    auto request = WorkRequest::all_reduce(data.data(), data.size(), DType::kUInt8, ReduceOp::kSum);
    for (const std::size_t block : {std::size_t{0}, kMaxBlockBytes + 1}) {
      request.block = block;
      const auto result = link.run(request);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::kInvalid);
    }
  });
}

}  // namespace
}  // namespace deft::link::testing
