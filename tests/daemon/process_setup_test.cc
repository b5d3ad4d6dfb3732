// What deftd asks of the kernel for its own process.
#include "daemon/base/process_setup.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace deft::daemon {
namespace {

TEST(ProcessSetup, AThreadThatHangsDoesNotKeepTheProcessForEver) {
  const auto hang = [] {
    end_at_the_latest(1);
    while (true) pause();
  };
  EXPECT_EXIT(hang(), testing::ExitedWithCode(1), "a thread of a job hangs, and the daemon ends without it");
}

}  // namespace
}  // namespace deft::daemon
