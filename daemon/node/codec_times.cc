#include "daemon/node/codec_times.h"

#include <algorithm>
#include <utility>

#include "daemon/channel/coded_piece.h"

namespace deft::daemon {
namespace {

double us_of(trace::TransferStage stage, const TransferDone& done) {
  double us = 0;
  for (const StageSpan& span : done.spans)
    if (span.stage == stage) us += static_cast<double>(span.end_us - span.begin_us);
  return us;
}

// Null: these times are not those of one codec.
const Coding* only_coding(const SubCommTask& launch, const TransferDone& done) {
  if (launch.codings == nullptr || launch.codings->coded.size() != 1 || launch.runs_again) return nullptr;
  if (done.codec_loss.given > 0 || done.wire_bytes >= done.bytes) return nullptr;
  const Coding& coding = launch.codings->coded.front();
  const std::size_t exact = elements_of(launch.codings->exact) + elements_of(launch.codings->settled);
  return 10 * exact > elements_of(coding.ranges) + exact ? nullptr : &coding;
}

}  // namespace

void CodecTimes::add(const SubCommTask& launch, const TransferDone& done) {
  const Coding* const coding = only_coding(launch, done);
  const auto codec = coding == nullptr ? codecs_.end() : std::ranges::find(codecs_, coding->codec);
  if (codec == codecs_.end()) return;
  wire::CodecTime& sum = sums_[static_cast<std::size_t>(codec - codecs_.begin())];
  sum.bytes += elements_of(coding->ranges) * sizeof(float);
  sum.encode_us += us_of(trace::TransferStage::kEncode, done);
  sum.decode_us += us_of(trace::TransferStage::kDecode, done);
}

std::vector<wire::CodecTime> CodecTimes::take() {
  std::vector<wire::CodecTime> used;
  for (std::size_t codec = 0; codec < sums_.size(); ++codec) {
    wire::CodecTime sum = std::exchange(sums_[codec], {});
    sum.codec = static_cast<model::CodecIndex>(codec);
    if (sum.bytes > 0) used.push_back(sum);
  }
  return used;
}

}  // namespace deft::daemon
