#include "core/link/segmented.h"

#include <utility>

namespace deft::link {

Segmented::Segmented(WorkRequest taken, std::uint32_t own_node, std::uint32_t nodes, std::size_t slot_bytes,
                     std::size_t whole_bytes)
    : request(std::move(taken)), node(own_node), element(model::dtype_bytes(request.dtype)) {
  whole = request.count * element <= whole_bytes;
  if (whole) return;
  slices = cut_slices(request.count, granule_of(element, request.block), is_by_all() ? 1 : nodes, slot_bytes / element);
}

void Segmented::own(Range range, std::span<const std::byte* const> inputs) const {
  const OwnedSegment segment{bytes(range), range.first, inputs, request.dtype, request.op};
  if (request.owner_stage) return request.owner_stage(segment);
  add(segment);
}

}  // namespace deft::link
