// What encoding and decoding takes a node in its real transfers, while compute runs: a sum for each codec of the job.
//
//   CodecTimes times(settings.codecs);
//   times.add(launch, done);              // each launch that has ended
//   leader.send(StepTime{us, times.take()});
//
// The stages `encode` and `decode` of a transfer are all of this node's work with a codec, but for the sums that it makes as the owner of
// blocks, which run while the link works (compress::stages_us_per_byte). Some launches do not tell, and are left out:
// - one with several codecs, or with a codec that a tensor has of its own;
// - one of which more than a tenth travels as it is: packing that is work, too;
// - one whose loss was measured, which takes another pass over the data;
// - one that ran again because a link was lost, and was encoded before;
// - one that was not encoded: a job of one node encodes nothing. So a codec that saves no bytes is never measured.
// Halves are widened before and rounded behind, which belongs to the price of their codec. Reactor thread.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/channel/transfer.h"
#include "daemon/node/coding_map.h"
#include "daemon/wire/codec_time.h"

namespace deft::daemon {

class CodecTimes {
 public:
  explicit CodecTimes(CodecList of_job) : codecs_(std::move(of_job)), sums_(codecs_.size()) {}

  void add(const SubCommTask& launch, const TransferDone& done);
  // The sums since the last call, of the codecs that were used.
  std::vector<wire::CodecTime> take();

 private:
  CodecList codecs_;
  std::vector<wire::CodecTime> sums_;  // [codec]
};

}  // namespace deft::daemon
