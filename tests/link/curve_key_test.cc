// The file of a key: why it cannot be read, and who else may read it.
#include "core/link/curve/curve_key.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace deft::link {
namespace {

namespace fs = std::filesystem;

class KeyFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::ofstream(path_) << "short\n"; }
  void TearDown() override { fs::remove(path_); }
  [[nodiscard]] std::string readers_with(unsigned mode) const {
    fs::permissions(path_, static_cast<fs::perms>(mode));
    return other_readers(path_);
  }
  const std::string path_ = ::testing::TempDir() + "deft-key-file" + std::to_string(::getpid());
};

TEST_F(KeyFiles, AFileThatCannotBeReadIsNoReasonToMakeANewKey) {
  const auto below_a_file = CurveKey::read(path_ + "/key");
  ASSERT_FALSE(below_a_file);
  EXPECT_EQ(below_a_file.error().what, "cannot read the key in " + path_ + "/key: Not a directory");
  EXPECT_EQ(below_a_file.error().fix.find("keygen"), std::string::npos) << below_a_file.error().fix;
  for (const std::string& no_key : {path_, path_ + "-missing"}) {
    const auto key = CurveKey::read(no_key);
    ASSERT_FALSE(key);
    EXPECT_NE(key.error().fix.find("keygen"), std::string::npos) << key.error().message();
  }
}

TEST_F(KeyFiles, WhoeverElseMayReadOrChangeItIsNamed) {
  for (const unsigned mode : {0400U, 0600U, 0700U}) EXPECT_EQ(readers_with(mode), "") << mode;
  for (const unsigned mode : {0604U, 0644U, 0602U}) EXPECT_EQ(readers_with(mode), "everyone") << mode;
  EXPECT_EQ(other_readers(path_ + "-missing"), "");
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give a file away";
  ASSERT_EQ(::chown(path_.c_str(), 0, 0), 0);
  for (const unsigned mode : {0640U, 0440U, 0620U}) EXPECT_EQ(readers_with(mode), "the group root") << mode;
  ASSERT_EQ(::chown(path_.c_str(), 0, 64'620), 0);  // of a container, as fsGroup makes it
  EXPECT_EQ(readers_with(0440), "");
}

}  // namespace
}  // namespace deft::link
