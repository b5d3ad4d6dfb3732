#include "core/sched/link_meter.h"

#include <gtest/gtest.h>

namespace deft::sched {
namespace {

TEST(LinkMeter, believesTheGuessUntilPartsAreSeen) {
  LinkMeter meter({"gloo:eth0", 200, 1000});
  meter.add(1 << 20, 50'000);
  EXPECT_DOUBLE_EQ(meter.model().bytes_per_us, 1000);
}

TEST(LinkMeter, findsThroughputAndLatency) {
  LinkMeter meter({"gloo:eth0", 200, 1000});
  for (int i = 0; i < 30; ++i) {
    meter.add(4096, 300 + 4096 / 20.0);
    meter.add(1 << 20, 300 + (1 << 20) / 20.0);
  }
  EXPECT_NEAR(meter.model().bytes_per_us, 20, 0.01);
  EXPECT_NEAR(meter.model().latency_us, 300, 1);
}

// On a slow link the smallest parts may take most of their time on the wire.
TEST(LinkMeter, tellsLatencyFromTheTimeOnTheWire) {
  LinkMeter meter({"gloo:eth0", 200, 1000});
  for (int i = 0; i < 30; ++i) {
    meter.add(30'000, 800 + 30'000 / 40.0);
    meter.add(1 << 20, 800 + (1 << 20) / 40.0);
  }
  EXPECT_NEAR(meter.model().bytes_per_us, 40, 0.1);
  EXPECT_NEAR(meter.model().latency_us, 800, 10);
}

// A slower node, or a disturbance, makes some parts look slow; the link is no slower for that.
TEST(LinkMeter, isNotMisledByPartsThatWaited) {
  LinkMeter meter({"gloo:eth0", 200, 1000});
  for (int i = 0; i < 60; ++i) meter.add(1 << 20, (1 << 20) / 20.0 * (i % 2 == 0 ? 1 : 3));
  EXPECT_NEAR(meter.model().bytes_per_us, 20, 1);
}

// With several parts under way one ends late, because it shared the wire, and the next one right after it.
TEST(LinkMeter, isNotMisledByPartsThatOverlap) {
  LinkMeter meter({"gloo:eth0", 200, 1000});
  for (int i = 0; i < 6; ++i) meter.add(4096, 300 + 4096 / 20.0);
  for (int i = 0; i < 60; ++i) {
    meter.add(1 << 20, (1 << 20) / 20.0 * (i % 2 == 0 ? 1.7 : 0.3), true);
    meter.add(4096, 10, true);
  }
  EXPECT_NEAR(meter.model().bytes_per_us, 20, 3);
  EXPECT_NEAR(meter.model().latency_us, 505 - 4096 / meter.model().bytes_per_us, 1);  // the parts that were alone
}

TEST(LinkMeter, followsALinkThatChanges) {
  LinkMeter meter({"gloo:eth0", 200, 1000});
  for (int i = 0; i < 40; ++i) meter.add(1 << 20, (1 << 20) / 80.0);
  EXPECT_NEAR(meter.model().bytes_per_us, 80, 2);
  for (int i = 0; i < 40; ++i) meter.add(1 << 20, (1 << 20) / 10.0);
  EXPECT_NEAR(meter.model().bytes_per_us, 10, 0.5);
}

TEST(LinkMeter, ignoresWhatMakesNoSense) {
  LinkMeter meter({"gloo:eth0", 200, 1000});
  for (int i = 0; i < 10; ++i) meter.add(1 << 20, 0);
  for (int i = 0; i < 10; ++i) meter.add(1 << 20, -5);
  EXPECT_DOUBLE_EQ(meter.model().bytes_per_us, 1000);
}

}  // namespace
}  // namespace deft::sched
