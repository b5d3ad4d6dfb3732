// Which elements of a part are encoded, and which travel as they are.
#include "daemon/node/coding_map.h"

#include <gtest/gtest.h>

#include "core/compress/registry.h"

namespace deft::daemon {
namespace {

using link::Range;

std::vector<std::pair<std::size_t, std::size_t>> pairs(const std::vector<Range>& ranges) {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (const Range& range : ranges) pairs.emplace_back(range.first, range.count);
  return pairs;
}
using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;

struct Fixture : testing::Test {
  void declare(const std::string& codec = "int8", std::uint64_t min_bytes = 16 << 10, std::uint32_t slots = 1) {
    layout = model::lay_out(specs, slots).value();
    map = CodingMap(specs, layout, {{nullptr, compress::make_codec(codec).value()}, own_codecs(specs).value()},
                    min_bytes, 42);
  }
  void declare_without_codec_of_the_job() {
    layout = model::lay_out(specs, 1).value();
    map = CodingMap(specs, layout, {{nullptr}, own_codecs(specs).value()}, 16 << 10, 42);
  }
  void add(std::vector<std::uint64_t> shape, model::DType dtype = model::DType::kFloat32) {
    specs.push_back({"t" + std::to_string(specs.size()), dtype, std::move(shape), 0});
  }
  std::vector<model::TensorSpec> specs;
  model::ArenaLayout layout;
  CodingMap map;
};
using CodingMapTest = Fixture;

TEST_F(CodingMapTest, LargeMatricesAreEncodedAndBiasesAreNot) {
  add({10});            // 64 bytes, and then up to the next block
  add({100, 100});      // 40'000 bytes, padded to 40'960
  add({100'000});       // of one dimension
  add({20, 20});        // small
  add({64, 64, 3, 3});  // 147'456 bytes: whole blocks
  declare();
  const auto codings = map.codings_of(0, layout.regions[0].bytes, 3, 1);
  ASSERT_NE(codings, nullptr);
  EXPECT_EQ(pairs(codings->coded.at(0).ranges), (Pairs{{256, 10'240}, {layout.tensors[4].offset / 4, 36'864}}));
  std::size_t covered = 0;
  for (const auto& [first, count] : pairs(codings->exact)) covered += count;
  EXPECT_EQ(covered + 10'240 + 36'864, layout.regions[0].bytes / 4);
  EXPECT_EQ(codings->slice.generation, 3U);
  EXPECT_EQ(codings->slice.first, 0U);
  EXPECT_NE(codings->residuals, nullptr);
  EXPECT_EQ(map.coded_bytes(), 40'000U + 147'456U);
}

TEST_F(CodingMapTest, PaddingOfCodedTensorsIsNamedInEachPart) {
  add({100, 100});  // elements 0 to 10'000, padded to 10'240
  add({5000});      // travels as it is
  add({64, 65});    // 4160 elements
  declare("efsignsgd");
  const std::size_t last = layout.tensors[2].offset / 4, all = layout.regions[0].bytes / 4;
  EXPECT_EQ(pairs(map.codings_of(0, all * 4, 0, 1)->padding), (Pairs{{10'000, 240}, {last + 4160, all - last - 4160}}));
  EXPECT_EQ(pairs(map.codings_of(9 * 4096, 4096, 0, 1)->padding), (Pairs{{784, 240}}));
  EXPECT_TRUE(map.codings_of(0, 9 * 4096, 0, 1)->padding.empty());
}

TEST_F(CodingMapTest, APartHasWholeBlocksWhereverItIsCut) {
  add({256, 256});
  declare();
  EXPECT_EQ(pairs(map.codings_of(4096, 8192, 0, 1)->coded[0].ranges), (Pairs{{0, 2048}}));
  EXPECT_EQ(map.codings_of(4096, 8192, 0, 1)->slice.first, 1024U);
  const auto odd = map.codings_of(64, 2048, 0, 1);  // elements 16 to 528
  EXPECT_EQ(pairs(odd->settled), (Pairs{{0, 240}, {496, 16}})) << "encoded before, so residuals go along";
  EXPECT_EQ(pairs(odd->coded[0].ranges), (Pairs{{240, 256}}));
  declare();
  EXPECT_EQ(map.codings_of(64, 512, 0, 1), nullptr) << "no whole block";
  EXPECT_EQ(pairs(map.codings_of(64, 2048, 0, 1)->exact), (Pairs{{0, 240}, {496, 16}}));
}

TEST_F(CodingMapTest, AfterAnEncodingExactLaunchesTakeResidualsAlong) {
  add({256, 256});
  add({20, 20});
  declare();
  EXPECT_EQ(map.codings_of(0, layout.regions[0].bytes, 0, 0), nullptr) << "nothing was left out yet";
  ASSERT_NE(map.codings_of(0, 4096, 1, 1), nullptr);
  const auto exact = map.codings_of(0, layout.regions[0].bytes, 2, 0);
  ASSERT_NE(exact, nullptr);
  EXPECT_TRUE(exact->coded.empty());
  EXPECT_NE(exact->residuals, nullptr);
  std::size_t settled = 0, other = 0;
  for (const auto& [first, count] : pairs(exact->settled)) settled += count;
  for (const auto& [first, count] : pairs(exact->exact)) other += count;
  EXPECT_EQ(settled, 65'536U);
  EXPECT_EQ(settled + other, layout.regions[0].bytes / 4);
}

TEST_F(CodingMapTest, OtherTypesAndSmallTensorsTravelAsTheyAre) {
  add({256, 256}, model::DType::kFloat64);
  add({256, 256});
  declare("int8", 1 << 20);
  EXPECT_EQ(map.coded_bytes(), 0U);
  EXPECT_EQ(map.codings_of(layout.tensors[1].offset, 262'144, 0, 1), nullptr);
  declare("int8");
  EXPECT_EQ(map.coded_bytes(), 262'144U);
  EXPECT_NE(map.codings_of(layout.tensors[1].offset, 262'144, 0, 1), nullptr);
  EXPECT_EQ(map.codings_of(layout.tensors[0].offset, 524'288, 0, 1), nullptr);
}

// float16 comes first: its elements are more than float32 would be in so many bytes.
TEST_F(CodingMapTest, EveryElementHasAPlaceOfItsOwnWhateverItsType) {
  add({100, 100}, model::DType::kFloat16);  // 20'000 bytes, padded to 20'480
  add({10}, model::DType::kFloat16);
  add({256, 256});
  add({128, 256}, model::DType::kBFloat16);
  add({64, 64});
  declare("int8");
  EXPECT_EQ(map.coded_bytes(), 262'144U + 20'000 + 65'536 + 16'384);
  std::vector<std::pair<std::size_t, std::size_t>> places;
  for (const model::Region& region : layout.regions) {
    const auto codings = map.codings_of(region.offset, region.bytes, 0, 1);
    ASSERT_NE(codings, nullptr);
    EXPECT_EQ(codings->dtype, region.dtype);
    EXPECT_EQ(codings->slice.first % 256, 0U) << "a block begins with a region";
    places.emplace_back(codings->slice.first, codings->slice.first + region.bytes / dtype_bytes(region.dtype));
    const auto use = codings->residuals->use(places.back().first, places.back().second - places.back().first);
    for (const float residual : use.values()) ASSERT_EQ(residual, 0);
    std::ranges::fill(use.values(), 1.0F);  // nobody else may find these
  }
  EXPECT_EQ(places[1].first, layout.regions[1].offset / 4) << "places of float32 are those of a job without halves";
  const auto half = map.codings_of(layout.regions[0].offset, layout.regions[0].bytes, 0, 1);
  EXPECT_EQ(pairs(half->coded.at(0).ranges), (Pairs{{0, 10'240}}));
  EXPECT_EQ(pairs(half->padding), (Pairs{{10'000, 240}}));
  const auto part = map.codings_of(layout.regions[0].offset + 1024, 2048, 0, 1);
  EXPECT_EQ(part->slice.first, half->slice.first + 512);
  EXPECT_EQ(pairs(part->coded.at(0).ranges), (Pairs{{0, 1024}}));
}

TEST_F(CodingMapTest, HalvesThatACodecDoesNotMakeSmallerTravelAsTheyAre) {
  add({256, 256}, model::DType::kBFloat16);
  add({256, 256});
  for (const char* const codec : {"bf16", "fp16", "topk/ratio=0.3", "randk/ratio=0.6"}) {
    declare(codec);
    EXPECT_EQ(map.codings_of(layout.tensors[0].offset, 131'072, 0, 1), nullptr) << codec;
    EXPECT_NE(map.codings_of(layout.tensors[1].offset, 262'144, 0, 1), nullptr) << codec;
  }
  declare("lowrank/rank=32");
  EXPECT_EQ(map.codings_of(layout.tensors[0].offset, 131'072 / 4, 0, 1), nullptr) << "64 rows: 40 kB of 32 kB";
  EXPECT_EQ(map.codings_of(layout.tensors[0].offset, 131'072, 0, 1)->coded.size(), 1U) << "64 kB of 128 kB";
  EXPECT_EQ(map.codings_of(layout.tensors[1].offset, 262'144 / 4, 0, 1)->coded.size(), 1U) << "40 kB of 64 kB";
}

TEST_F(CodingMapTest, ACodecWithoutFeedbackKeepsNoResiduals) {
  add({256, 256});
  declare("terngrad");
  EXPECT_EQ(map.codings_of(0, 4096, 0, 1)->residuals, nullptr);
}

TEST_F(CodingMapTest, WithoutACodecNothingIsEncoded) { EXPECT_EQ(CodingMap().codings_of(0, 4096, 0, 0), nullptr); }

TEST_F(CodingMapTest, ATensorsOwnCodecWins) {
  for (int i = 0; i < 5; ++i) add({64, 64});  // 4096 elements each
  add({4096});
  add({10});
  specs[1].codec = "none";
  specs[2].codec = specs[4].codec = "int4";
  specs[5].codec = "topk/ratio=0.5";  // of one dimension: whoever names it means it
  specs[6].codec = "int4";            // too small for blocks
  declare("int8");
  const auto codings = map.codings_of(0, layout.regions[0].bytes, 0, 1);
  ASSERT_EQ(codings->coded.size(), 3U);
  EXPECT_EQ(codings->coded[0].codec->traits().name, "int8");
  EXPECT_EQ(pairs(codings->coded[0].ranges), (Pairs{{0, 4096}, {3 * 4096, 4096}}));
  EXPECT_EQ(codings->coded[1].codec->traits().name, "int4");
  EXPECT_EQ(pairs(codings->coded[1].ranges), (Pairs{{2 * 4096, 4096}, {4 * 4096, 4096}}));
  EXPECT_EQ(codings->coded[2].codec->traits().name, "topk");
  EXPECT_EQ(pairs(codings->exact).front(), (std::pair<std::size_t, std::size_t>{4096, 4096}));
  EXPECT_NE(codings->residuals, nullptr);
  // A launch without a codec leaves the others exact, and takes residuals along.
  const auto exact = map.codings_of(0, layout.regions[0].bytes, 1, 0);
  ASSERT_EQ(exact->coded.size(), 2U);
  EXPECT_EQ(pairs(exact->settled), (Pairs{{0, 4096}, {3 * 4096, 4096}}));
}

TEST_F(CodingMapTest, ResidualsTravelWithAllTensors) {
  add({64, 64});
  add({64, 64});
  specs[1].codec = "int4";
  declare("int8");
  EXPECT_EQ(map.codings_of(0, layout.regions[0].bytes, 0, model::kWithResiduals), nullptr) << "there are none yet";
  ASSERT_EQ(map.codings_of(0, layout.regions[0].bytes, 0, 1)->coded.size(), 2U);
  const auto codings = map.codings_of(0, layout.regions[0].bytes, 1, model::kWithResiduals);
  EXPECT_TRUE(codings->coded.empty());
  EXPECT_EQ(pairs(codings->settled), (Pairs{{0, 4096}, {4096, 4096}}));
}

TEST_F(CodingMapTest, OwnCodecsNeedNoCodecOfTheJob) {
  add({64, 64});
  add({64, 64});
  specs[1].codec = "bf16";
  declare_without_codec_of_the_job();
  EXPECT_EQ(map.codings_of(0, 4096 * 4, 0, 0), nullptr);
  const auto codings = map.codings_of(0, layout.regions[0].bytes, 0, 0);
  ASSERT_NE(codings, nullptr);
  EXPECT_EQ(pairs(codings->coded.at(0).ranges), (Pairs{{4096, 4096}}));
  EXPECT_EQ(pairs(codings->exact), (Pairs{{0, 4096}}));
}

TEST_F(CodingMapTest, LowRankEncodesTheWholeRowsOfAPart) {
  add({100, 100});      // elements 0 to 10'000, padded to 10'240
  add({10});            // travels as it is
  add({64, 32, 3, 3});  // 64 rows of 288
  declare("lowrank/rank=4");
  const std::size_t kernel = layout.tensors[2].offset / 4;
  const auto whole = map.codings_of(0, layout.regions[0].bytes, 0, 1);
  ASSERT_EQ(whole->coded.size(), 1U);
  EXPECT_EQ(pairs(whole->coded[0].ranges), (Pairs{{0, 10'000}, {kernel, 64 * 288}}));
  EXPECT_EQ(whole->coded[0].matrices[0].shape, (compress::MatrixShape{100, 100, 4}));
  EXPECT_EQ(whole->coded[0].matrices[1].shape, (compress::MatrixShape{64, 288, 4}));
  EXPECT_EQ(pairs(whole->exact), (Pairs{{10'240, kernel - 10'240}})) << "not the padding";
  const auto part = map.codings_of(1024, 5 * 1024, 1, 1);  // elements 256 to 1536
  EXPECT_EQ(pairs(part->coded.at(0).ranges), (Pairs{{44, 1200}})) << "rows 3 to 14";
  EXPECT_EQ(part->coded[0].matrices[0].shape, (compress::MatrixShape{12, 100, 4}));
  EXPECT_EQ(pairs(part->settled), (Pairs{{0, 44}, {1244, 36}})) << "with their residuals";
  EXPECT_TRUE(part->exact.empty());
  const auto few = map.codings_of(0, 1024, 1, 1);  // two rows
  EXPECT_TRUE(few->coded.empty());
  EXPECT_EQ(pairs(few->settled), (Pairs{{0, 256}}));
}

TEST_F(CodingMapTest, FactorsStayWithTheirRowsAndTheirSlot) {
  add({100, 100});
  add({64, 64});
  declare("lowrank", 16 << 10, 2);
  const auto turn = [this](std::uint64_t offset, std::uint64_t bytes, std::uint64_t generation) {
    return map.codings_of(offset, bytes, generation, 1)->coded.at(0).matrices.at(0);
  };
  const std::uint64_t other = layout.tensors[1].offset;
  const auto first = turn(0, 40'960, 0), second = turn(other, 16'384, 0), of_slot_1 = turn(0, 40'960, 1);
  EXPECT_EQ(first.turn, 0U);
  EXPECT_NE(first.factors, of_slot_1.factors);
  EXPECT_EQ(turn(0, 40'960, 2).factors, first.factors);
  EXPECT_EQ(turn(0, 40'960, 4).turn, 2U);
  const auto cut = turn(10'240, 20'480, 6);  // another plan
  EXPECT_NE(cut.factors, first.factors);
  EXPECT_EQ(cut.turn, 0U);
  EXPECT_EQ(turn(other, 16'384, 6).factors, second.factors) << "these rows are cut as before";
  EXPECT_EQ(turn(0, 40'960, 7).factors, of_slot_1.factors) << "nothing was cut in this slot";
  const auto again = turn(0, 40'960, 8);
  EXPECT_NE(again.factors, first.factors) << "the first ones were forgotten";
  EXPECT_NE(again.factors->seed, first.factors->seed);
  EXPECT_EQ(turn(10'240, 20'480, 10).turn, 0U) << "and then those of the other plan";
}

TEST_F(CodingMapTest, AnUnknownOwnCodecIsAnErrorThatNamesTheTensor) {
  add({64, 64});
  specs[0].codec = "int9";
  EXPECT_NE(own_codecs(specs).error().message().find("tensor 't0'"), std::string::npos);
  EXPECT_NE(own_codecs(specs).error().message().find("int8"), std::string::npos) << "the nearest name";
  specs[0].codec = "dgc";
  EXPECT_NE(own_codecs(specs).error().message().find("momentum"), std::string::npos);
}

}  // namespace
}  // namespace deft::daemon
