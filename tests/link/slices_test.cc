// Slices and segments over every small count, granule and slot.
#include "core/link/slices.h"

#include <gtest/gtest.h>

#include <vector>

namespace deft::link {
namespace {

TEST(Slices, ATypeIsCutOnCacheLinesAndABlockAtItsOwnMultiples) {
  EXPECT_EQ(granule_of(4, 1), 16U);
  EXPECT_EQ(granule_of(1, 1), 64U);
  EXPECT_EQ(granule_of(1, 2), 64U);
  EXPECT_EQ(granule_of(1, 260), 260U);
  EXPECT_EQ(granule_of(1, 36), 36U);
}

TEST(Slices, SegmentsCoverEveryElementOnceInWholeGranulesThatFitASlot) {
  for (const std::size_t granule : {1U, 3U, 16U, 36U})
    for (const std::uint32_t nodes : {1U, 2U, 3U, 5U})
      for (const std::size_t slot : {granule, granule + 1, 3 * granule, 10 * granule + granule / 2})
        for (std::size_t count = 1; count < 400; count += count < 40 ? 1 : 13) {
          const Slices slices = cut_slices(count, granule, nodes, slot);
          std::vector<int> covered(count, 0);
          for (std::uint32_t owner = 0; owner < nodes; ++owner) {
            const Range slice = slice_of(count, granule, nodes, owner);
            std::size_t of_slice = 0;
            for (std::uint64_t round = 0; round < slices.rounds; ++round) {
              const Range segment = slices.segment_of(owner, round);
              of_slice += segment.count;
              if (segment.count == 0) continue;
              EXPECT_LE(segment.count, slot);
              EXPECT_EQ(segment.first % granule, 0U);
              EXPECT_GE(segment.first, slice.first);
              for (std::size_t i = 0; i < segment.count; ++i) ++covered.at(segment.first + i);
            }
            ASSERT_EQ(of_slice, slice.count) << count << " by " << granule << " on " << nodes << ", slot " << slot;
          }
          ASSERT_EQ(covered, std::vector<int>(count, 1)) << count << " by " << granule << " on " << nodes;
        }
}

}  // namespace
}  // namespace deft::link
