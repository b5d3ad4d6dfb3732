// The books about what is on its way: what is expected follows what really ended.
#include "core/sched/link_board.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace deft::sched {
namespace {

// 10 us and 100 bytes a microsecond: 1,000 bytes take 20 us, 2,000 take 30.
LinkBoard one_link() { return LinkBoard({{"link", 10, 100}}, {4000}); }
constexpr Launch kShort{.id = 1, .link = 0, .bucket = 0, .generation = 0, .offset = 0, .bytes = 1000};
constexpr Launch kLong{.id = 2, .link = 0, .bucket = 1, .generation = 0, .offset = 0, .bytes = 2000};

TEST(LinkBoard, itIsFreeWhenAllThatIsOnItsWayIsThrough) {
  LinkBoard board = one_link();
  EXPECT_EQ(board.free_at_us(0, 7), 7);
  board.launch(kShort, 0);
  board.launch(kLong, 0);
  EXPECT_EQ(board.free_at_us(0, 0), 50);
  EXPECT_EQ(board.free_at_us(0, 40), 40 + 30);  // the first is overdue, the second takes its time after it
}

TEST(LinkBoard, aRealEndCorrectsWhatIsExpectedOfTheRest) {
  LinkBoard board = one_link();
  board.launch(kShort, 0);
  board.launch(kLong, 0);
  board.finish(kShort, 25);
  EXPECT_EQ(board.free_at_us(0, 25), 25 + 30);
  board.finish(kLong, 60);
  EXPECT_TRUE(board.is_idle(0));
  EXPECT_EQ(board.free_at_us(0, 60), 60);
  EXPECT_EQ(board.on_way_bytes(0), 0U);
}

TEST(LinkBoard, whatOvertakesTheFirstLeavesItWhereItIs) {
  LinkBoard board = one_link();
  board.launch(kShort, 0);
  board.launch(kLong, 0);
  board.finish(kLong, 15);
  EXPECT_EQ(board.free_at_us(0, 15), 20);
}

TEST(LinkBoard, theWindowIsWhatMayBeOnItsWayAndTheFirstGoesWhateverItsSize) {
  LinkBoard board = one_link();
  EXPECT_EQ(board.room_bytes(0), std::numeric_limits<std::uint64_t>::max());
  board.launch(kShort, 0);
  EXPECT_EQ(board.room_bytes(0), 3000U);
  EXPECT_EQ(board.room_bytes(0, 2500), 500U);
  EXPECT_EQ(board.room_bytes(0, 3000), 0U);
}

TEST(LinkBoard, anEstimateThatMakesNoSenseIsNoNews) {
  LinkBoard board = one_link();
  board.measured(0, {"link", -1, 100});
  board.measured(0, {"link", 10, 0});
  board.measured(0, {"link", std::nan(""), 100});
  EXPECT_EQ(board.cost_us(0, 1000), 20);
  board.measured(0, {"link", 5, 200});
  EXPECT_EQ(board.cost_us(0, 1000), 10);
}

}  // namespace
}  // namespace deft::sched
