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

TEST(LinkBoard, bytesGoToTheLinkOnWhichTheyEndFirst) {
  LinkBoard board({{"slow", 10, 100}, {"fast", 40, 1000}}, {4000});
  std::vector<double> free_at_us;
  board.list_free_at_us(5, free_at_us);
  EXPECT_EQ(free_at_us, (std::vector<double>{5, 5}));
  EXPECT_EQ(board.give_to_earliest(1000, free_at_us), 0U);
  EXPECT_EQ(free_at_us, (std::vector<double>{25, 5})) << "the link is free when they end";
  EXPECT_EQ(board.give_to_earliest(3000, free_at_us), 1U) << "at 48, and not at 65";
  EXPECT_EQ(board.give_to_earliest(1000, free_at_us), 0U);
  EXPECT_EQ(free_at_us, (std::vector<double>{45, 48}));
  board.remove(0);
  board.list_free_at_us(5, free_at_us);
  EXPECT_EQ(board.give_to_earliest(1000, free_at_us), 1U) << "a lost link is never free";
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
