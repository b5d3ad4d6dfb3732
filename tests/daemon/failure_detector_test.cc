// Who is lost: found by silence, by who does not answer after something broke, and never blamed on one that answers.
#include "daemon/base/failure_detector.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

using Broken = FailureDetector::Broken;
using Cause = FailureDetector::Cause;

constexpr FailureDetector::Limits kLimits{.silence_us = 500, .answer_us = 100, .ended_us = 50, .give_up_us = 200};
const Error kBroken{ErrorKind::kLost, "connection reset", "", {}};

TEST(FailureDetector, FindsNobodyWhileAllAreHeard) {
  FailureDetector detector(kLimits, 2, 1000);
  EXPECT_FALSE(detector.check(1500));
  detector.heard(0, 1500);
  detector.heard(1, 1400);
  EXPECT_FALSE(detector.check(1900));
}

TEST(FailureDetector, NamesThePeerThatFellSilentAndForHowLong) {
  FailureDetector detector(kLimits, 3, 0);
  for (const std::size_t peer : {0, 1}) detector.heard(peer, 400);
  const auto finding = detector.check(501);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->cause, Cause::kSilent);
  EXPECT_EQ(finding->peer, 2u);
  EXPECT_EQ(finding->silent_us, 501);
}

TEST(FailureDetector, SaysThatNobodyIsHeardIfAllOthersAreSilentToo) {
  FailureDetector detector(kLimits, 4, 0);
  detector.done(3);  // its silence says nothing
  for (const std::size_t peer : {1, 2}) detector.heard(peer, 100);
  detector.heard(2, 200);
  EXPECT_TRUE(detector.check(601, 0)->hears_nobody);
  detector.heard(2, 400);
  const auto finding = detector.check(601, 0);
  EXPECT_EQ(finding->peer, 1u);
  EXPECT_FALSE(finding->hears_nobody) << "peer 2 was heard a moment ago";
  EXPECT_FALSE(FailureDetector(kLimits, 2, 0).check(601, 0)->hears_nobody) << "one lost peer is not all others";
}

TEST(FailureDetector, SaysThatNobodyIsHeardIfNobodyAnswers) {
  FailureDetector detector(kLimits, 3, 0);
  for (const std::size_t peer : {0, 1, 2}) detector.heard(peer, 90);
  EXPECT_TRUE(detector.suspect(kBroken, 100));
  detector.heard(0, 110);
  EXPECT_TRUE(detector.check(200, 0)->hears_nobody);
  detector.heard(2, 110);
  EXPECT_FALSE(detector.check(200, 0)->hears_nobody);
}

TEST(FailureDetector, DoesNotTakeItsOwnSilenceForALoss) {
  FailureDetector detector(kLimits, 2, 0);
  detector.heard(1, 400);
  EXPECT_FALSE(detector.check(600, 0));
  EXPECT_TRUE(detector.check(600));
}

TEST(FailureDetector, DoesNotTakeTheSilenceOfAPeerThatEndedForALoss) {
  FailureDetector detector(kLimits, 1, 0);
  detector.done(0);
  EXPECT_FALSE(detector.check(10'000));
}

TEST(FailureDetector, BlamesASuspicionOnThePeerThatDoesNotAnswer) {
  FailureDetector detector(kLimits, 2, 0);
  detector.heard(0, 90);
  detector.heard(1, 90);
  EXPECT_TRUE(detector.suspect(kBroken, 100));
  detector.heard(0, 110);
  EXPECT_FALSE(detector.check(199)) << "peer 1 still has time to answer";
  const auto finding = detector.check(200);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->cause, Cause::kUnanswered);
  EXPECT_EQ(finding->peer, 1u);
  EXPECT_EQ(finding->suspicion.what, kBroken.what);
}

TEST(FailureDetector, BlamesNobodyIfAllAnswer) {
  FailureDetector detector(kLimits, 1, 0);
  detector.suspect(kBroken, 100);
  detector.heard(0, 150);
  EXPECT_FALSE(detector.check(299));
  const auto finding = detector.check(300);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->cause, Cause::kSuspicion);
  EXPECT_EQ(finding->suspicion.what, kBroken.what);
}

TEST(FailureDetector, BlamesALinkOfTheWorkersOnAPeerWhoseWorkersHaveEnded) {
  FailureDetector detector(kLimits, 2, 0);
  detector.done(1);
  detector.suspect(kBroken, 100, Broken::kWorkersLink);
  for (const std::size_t peer : {0, 1}) detector.heard(peer, 120);
  EXPECT_FALSE(detector.check(149));
  const auto finding = detector.check(150);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->cause, Cause::kEnded);
  EXPECT_EQ(finding->peer, 1u);
}

// Its daemon keeps its links for the others.
TEST(FailureDetector, DoesNotBlameAPeerWhoseWorkersHaveEndedWhileItsDaemonAnswers) {
  FailureDetector detector(kLimits, 2, 0);
  detector.done(1);
  for (const std::size_t peer : {0, 1}) detector.heard(peer, 90);
  detector.suspect(kBroken, 100);
  for (const std::size_t peer : {0, 1}) detector.heard(peer, 120);
  EXPECT_FALSE(detector.check(299));
  EXPECT_EQ(detector.check(300)->cause, Cause::kSuspicion);
}

TEST(FailureDetector, BlamesASuspicionOnAPeerWhoseDaemonHasEndedWithItsWorkers) {
  FailureDetector detector(kLimits, 2, 0);
  detector.done(1);
  for (const std::size_t peer : {0, 1}) detector.heard(peer, 90);
  detector.suspect(kBroken, 100);
  detector.heard(0, 120);
  EXPECT_FALSE(detector.check(199)) << "peer 1 still has time to answer";
  EXPECT_EQ(detector.check(200)->cause, Cause::kEnded);

  FailureDetector later(kLimits, 2, 0);
  later.done(1);
  later.heard(0, 1000);
  EXPECT_FALSE(later.check(1000));
  later.suspect(kBroken, 1000);
  EXPECT_FALSE(later.check(1049));
  ASSERT_TRUE(later.check(1050)) << "it has been silent for longer than a peer may be";
  EXPECT_EQ(later.check(1050)->cause, Cause::kEnded);
}

TEST(FailureDetector, LooksIntoOneSuspicionAtATimeAndAJobsBeforeALinks) {
  FailureDetector detector(kLimits, 1, 0);
  EXPECT_TRUE(detector.suspect(kBroken, 100, Broken::kReplacedLink));
  EXPECT_FALSE(detector.suspect(kBroken, 110, Broken::kReplacedLink));
  EXPECT_TRUE(detector.suspect({ErrorKind::kLost, "worse", "", {}}, 120));
  EXPECT_FALSE(detector.suspect(kBroken, 130, Broken::kReplacedLink));
  detector.heard(0, 140);
  const auto finding = detector.check(320);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->suspicion.what, "worse");
  EXPECT_FALSE(finding->of_link);
  detector.forget_suspicion();
  EXPECT_FALSE(detector.check(400));
}

}  // namespace
}  // namespace deft::daemon
