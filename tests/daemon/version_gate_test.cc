// Daemons of different versions: each tells the other once, and both jobs hear why.
#include "daemon/wire/version_gate.h"

#include <gtest/gtest.h>

namespace deft::daemon {
namespace {

wire::Received received(const std::string& bytes) {
  return std::move(*wire::Received::parse(std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

wire::Received of_version(std::uint32_t version) {
  return received(
      wire::encode({.job = "job", .incarnation = 7, .version = version}, wire::ToLeader(wire::LinksOpen{})));
}

TEST(VersionGate, LetsTheOwnVersionThrough) {
  EXPECT_FALSE(VersionGate("here").mismatch(of_version(wire::kControlVersion)));
}

TEST(VersionGate, NamesBothVersions) {
  const auto error = VersionGate("here").mismatch(of_version(99));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, ErrorKind::kMismatch);
  EXPECT_EQ(error->what, "the daemon on here speaks control version " + std::to_string(wire::kControlVersion) +
                             ", another one version 99");
}

TEST(VersionGate, RefusesEachPeerOnce) {
  VersionGate gate("here");
  EXPECT_TRUE(gate.answer("a", of_version(99)));
  EXPECT_FALSE(gate.answer("a", of_version(99)));
  EXPECT_TRUE(gate.answer("b", of_version(99)));
}

TEST(VersionGate, NeverAnswersARefusalAndHandsItsReasonOn) {
  VersionGate here("here"), there("there");
  const auto refusal = here.answer("to there", of_version(99));
  ASSERT_TRUE(refusal);
  const wire::Received told = received(*refusal);
  EXPECT_EQ(told.header().job, "job");
  EXPECT_EQ(told.header().incarnation, 7U);
  EXPECT_FALSE(there.answer("to here", told));
  const auto reason = there.mismatch(told);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->what.find("the daemon on here speaks control version"), std::string::npos);
}

// A flood from many connections must not grow what is remembered without a bound; a peer may then be told again.
TEST(VersionGate, ForgetsPeersRatherThanGrow) {
  VersionGate gate("here");
  for (int i = 0; i < 5000; ++i) EXPECT_TRUE(gate.answer(std::to_string(i), of_version(99)));
  EXPECT_FALSE(gate.answer("4999", of_version(99)));
  EXPECT_TRUE(gate.answer("1", of_version(99)));
}

}  // namespace
}  // namespace deft::daemon
