// How the gradients of a transfer are encoded for the wire. Plain data; the same on all nodes but for the residuals.
//
// A transfer may hold tensors with different codecs, and tensors that travel as they are (small ones, biases). Each codec has
// one Coding, and what no Coding names travels as it is. coded_transfer.h does the work.
//
// Elements are counted, not bytes: an element of the arena has one residual and one place, whatever its type.
#pragma once

#include <memory>
#include <vector>

#include "core/compress/codec.h"
#include "core/link/slices.h"
#include "core/model/dtype.h"
#include "daemon/channel/factors.h"
#include "daemon/channel/residuals.h"

namespace deft::daemon {

// The error of encodings: sums of squares of their inputs (gradients with residuals) and of the parts that they left out.
struct CodecLoss {
  double left_out = 0;
  double given = 0;
};

struct Coding {
  std::shared_ptr<const compress::Codec> codec;
  std::vector<link::Range> ranges;         // elements of the transfer, ascending; each holds whole blocks of the codec
  std::vector<CodedMatrix> matrices = {};  // of a low-rank codec: one for each range
};

struct Codings {
  model::DType dtype = model::DType::kFloat32;  // of the transfer: float32, float16 or bfloat16
  std::vector<Coding> coded;
  std::vector<link::Range> exact;  // elements of the transfer that travel as they are, ascending
  // Likewise, but their residuals are added first. So an exact transfer takes residuals along.
  std::vector<link::Range> settled = {};
  compress::Slice slice;  // of the transfer's first element: its place in the arena, and the key of randomness
  std::shared_ptr<Residuals> residuals;  // null: no codec keeps any
  // Elements of the transfer behind the ends of coded tensors, ascending. Codecs of signs make other values of their zeros, which
  // must not count in the scales of the next generation.
  std::vector<link::Range> padding = {};
};

}  // namespace deft::daemon
