// Which launches tell what a codec takes, and how much.
#include "daemon/node/codec_times.h"

#include <gtest/gtest.h>

#include "daemon/base/settings.h"

namespace deft::daemon {
namespace {

using trace::TransferStage;

struct Times : testing::Test {
  const CodecPointer bf16 = gradient_codec("bf16").value(), int8 = gradient_codec("int8").value();
  CodecTimes times{{nullptr, bf16, int8}};

  // 16,384 elements, of which the first ones travel as they are.
  static SubCommTask launch(const CodecPointer& codec, std::size_t exact = 0) {
    auto codings = std::make_shared<Codings>();
    if (exact > 0) codings->exact.push_back({0, exact});
    codings->coded.push_back({codec, {{exact, 16'384 - exact}}});
    SubCommTask launch;
    launch.codings = std::move(codings);
    return launch;
  }
  static TransferDone done(TimeUs encode_us, TimeUs decode_us) {
    TransferDone done;
    done.bytes = 65'536;
    done.wire_bytes = 16'500;
    done.spans = {{TransferStage::kSum, 10, 90},
                  {TransferStage::kEncode, 100, 100 + encode_us},
                  {TransferStage::kLink, 500, 5000},
                  {TransferStage::kDecode, 5000, 5000 + decode_us},
                  {TransferStage::kCopy, 6000, 7000}};
    return done;
  }
};

TEST_F(Times, AreSummedForEachCodecUntilTheyAreTaken) {
  times.add(launch(int8), done(30, 20));
  times.add(launch(int8), done(40, 25));
  times.add(launch(bf16), done(7, 5));
  auto taken = times.take();
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].codec, 1);
  EXPECT_EQ(taken[0].bytes, 65'536U);
  EXPECT_EQ(taken[0].encode_us, 7);
  EXPECT_EQ(taken[1].codec, 2);
  EXPECT_EQ(taken[1].bytes, 131'072U);
  EXPECT_EQ(taken[1].encode_us, 70);
  EXPECT_EQ(taken[1].decode_us, 45);
  EXPECT_TRUE(times.take().empty());
}

TEST_F(Times, CountOnlyWhatWasEncoded) {
  times.add(launch(int8, 1024), done(30, 20));
  const auto taken = times.take();
  ASSERT_EQ(taken.size(), 1U);
  EXPECT_EQ(taken[0].bytes, (16'384U - 1024U) * 4);
}

TEST_F(Times, HalvesCountAsTheFloat32ThatTheyAreWidenedTo) {
  auto halves = done(30, 20);
  halves.bytes /= 2;
  times.add(launch(int8), halves);
  EXPECT_EQ(times.take().at(0).bytes, 65'536U);
}

TEST_F(Times, OtherWorkThanTheCodecsIsLeftOut) {
  const auto is_left_out = [&](const SubCommTask& launch, const TransferDone& done) {
    times.add(launch, done);
    return times.take().empty();
  };
  EXPECT_FALSE(is_left_out(launch(int8, 1638), done(30, 20)));
  EXPECT_TRUE(is_left_out(launch(int8, 1639), done(30, 20))) << "more than a tenth travels as it is";
  EXPECT_TRUE(is_left_out(SubCommTask{}, done(30, 20))) << "no codec";
  EXPECT_TRUE(is_left_out(launch(gradient_codec("int8").value()), done(30, 20))) << "a codec of a tensor";
  auto several = launch(int8, 8192);
  auto codings = std::make_shared<Codings>(*several.codings);
  codings->exact.clear();
  codings->coded.push_back({bf16, {{0, 8192}}});
  several.codings = codings;
  EXPECT_TRUE(is_left_out(several, done(30, 20)));
  auto measured = done(30, 20);
  measured.codec_loss = {.left_out = 0, .given = 2};
  EXPECT_TRUE(is_left_out(launch(int8), measured)) << "another pass took the time";
  auto again = launch(int8);
  again.runs_again = true;
  EXPECT_TRUE(is_left_out(again, done(0, 20)));
  auto alone = done(0, 0);
  alone.wire_bytes = alone.bytes;
  EXPECT_TRUE(is_left_out(launch(int8), alone)) << "a job of one node encodes nothing";
}

}  // namespace
}  // namespace deft::daemon
