// Tells which bytes of a group's arena are encoded for the wire, and by which codec.
//
//   auto own = own_codecs(specs);                                             // an error: no such codec
//   CodingMap map(specs, layout, {job_codecs, *own}, min_bytes, job_key);      // when the group is declared
//   launch.codings = map.codings_of(offset, bytes, generation, codec);        // once a launch, in the leader's order
//
// The launch names the codec of all tensors, unless a tensor has its own. Tensors that no codec may encode (model::is_encodable)
// travel as they are. Large tensors begin and end on whole blocks of the arena. So do parts of a bucket that begins on a whole block
// (model::kPartAlignBytes). So a block holds the same elements, whatever the plan. A low-rank codec encodes the whole rows of a matrix
// that lie in the launch, if that saves bytes, and the rest of the matrix travels as it is. All nodes compute the same map.
//
// Residuals, blocks and random numbers belong to places: an element of a slot has one, whatever its type. float32 at byte b has place
// b / 4. The halves at byte b stand behind all of these, at slot_bytes / 4 + b / 2. A codec that does not make halves smaller (bf16, fp16)
// leaves them as they are.
//
// The map holds the group's residuals. Codecs may change with each generation: once a codec has left something out, launches
// that travel as they are take the residuals of their elements along. Reactor thread; residuals are used by the channels' threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/model/codec_cost.h"
#include "core/model/tensors.h"
#include "daemon/channel/coding.h"

namespace deft::daemon {

using CodecPointer = std::shared_ptr<const compress::Codec>;  // null: exact
using CodecList = std::vector<CodecPointer>;

struct GroupCodecs {
  CodecList of_job;    // the first is null
  CodecList own = {};  // of each tensor; null: it has none. Equal texts are one object. Empty: no tensor has one
};

// The own codecs of these tensors. kInvalid names the tensor whose codec is unknown.
Result<CodecList> own_codecs(std::span<const model::TensorSpec> specs);

class CodingMap {
 public:
  CodingMap() = default;  // nothing is encoded
  CodingMap(std::span<const model::TensorSpec> specs, const model::ArenaLayout& layout, GroupCodecs codecs,
            std::uint64_t min_bytes, std::uint64_t job_key);

  // The codings of bytes [offset, offset + bytes) of a slot, which lie in one region. `codec` is one of the list, or
  // model::kWithResiduals, which encodes nothing. Null: the bytes travel as they are. It is called for all launches in their order,
  // which is the same on all nodes.
  [[nodiscard]] std::shared_ptr<const Codings> codings_of(std::uint64_t offset, std::uint64_t bytes,
                                                          std::uint64_t generation, model::CodecIndex codec);
  // The bytes of a slot that may be encoded, without padding.
  [[nodiscard]] std::uint64_t coded_bytes() const { return coded_bytes_; }
  [[nodiscard]] std::size_t codecs() const { return codecs_.size(); }

 private:
  // A region whose tensors codecs may encode.
  struct Area {
    model::Region region;
    std::size_t first = 0;  // its first place
    [[nodiscard]] std::size_t place_of(std::uint64_t offset) const {
      return first + (offset - region.offset) / model::dtype_bytes(region.dtype);
    }
  };
  struct Extent {
    link::Range elements;  // places, padding included
    bool coded = false;
    CodecPointer own;  // null: the launch's
    [[nodiscard]] std::size_t end() const { return elements.first + elements.count; }
    [[nodiscard]] bool is_like(const Extent& other) const { return coded == other.coded && own == other.own; }
  };
  // An encodable tensor as a matrix, if a codec asks for it.
  struct Matrix {
    std::size_t first = 0;        // place
    compress::MatrixShape shape;  // without a rank
    [[nodiscard]] std::size_t end() const { return first + shape.elements(); }
  };
  void add_area(const Area& area, std::span<const model::TensorSpec> specs, const model::ArenaLayout& layout,
                const CodecList& own, std::uint64_t min_bytes);
  void add_extent(Extent extent);
  void divide(const link::Range& elements, const CodecPointer& codec, bool exact, Codings& codings);
  void divide_matrices(const link::Range& elements, const CodecPointer& codec, Codings& codings);
  void add_rows(const Matrix& matrix, const link::Range& elements, const CodecPointer& codec, Codings& codings);
  [[nodiscard]] std::vector<link::Range>& rest_of(Codings& codings) const {
    return leaves_residuals_ ? codings.settled : codings.exact;
  }
  std::vector<Area> areas_;
  std::vector<Extent> extents_;       // ascending; neighbours differ
  std::vector<Matrix> matrices_;      // ascending
  std::vector<link::Range> padding_;  // places behind the ends of coded tensors, ascending
  CodecList codecs_ = {nullptr};
  bool has_own_ = false;                  // a tensor has its own codec
  std::shared_ptr<Residuals> residuals_;  // null: no codec of the list keeps any
  bool leaves_residuals_ = false;         // a codec that keeps residuals was used
  FactorTable factors_;
  std::uint32_t slots_ = 1;
  std::uint64_t job_key_ = 0;
  std::uint64_t coded_bytes_ = 0;
};

}  // namespace deft::daemon
