// Feeds the reader of traces, and all that works on what it has read. The checksums of a trace would keep a fuzzer from its
// contents. So unless the first byte is odd, the input is a list of frames, (type, length, content), which are compressed here.
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/replay/job_timeline.h"
#include "core/replay/measured_job.h"
#include "core/replay/replay.h"

namespace {

using Bytes = std::vector<std::byte>;

void append(Bytes& out, const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + bytes);
}

void append_frame(Bytes& out, std::uint32_t type, const std::uint8_t* content, std::size_t bytes) {
  std::vector<char> stored(ZSTD_compressBound(bytes));
  const std::size_t used = ZSTD_compress(stored.data(), stored.size(), content, bytes, 1);
  if (ZSTD_isError(used) != 0) std::abort();
  const std::uint32_t head[] = {type, static_cast<std::uint32_t>(used), static_cast<std::uint32_t>(bytes)};
  append(out, head, sizeof(head));
  append(out, stored.data(), used);
}

// A header that is right, so that what follows is read.
constexpr std::string_view kHeader =
    R"({"job":"j","incarnation":1,"node":0,"nodes":1,"host":"h","ranks":[0],"links":["gloo:a"],"options":{"policy":"fifo"}})";

Bytes file_of(const std::uint8_t* data, std::size_t size) {
  Bytes file;
  append(file, "DEFTTRC1", 8);
  append_frame(file, 1, reinterpret_cast<const std::uint8_t*>(kHeader.data()), kHeader.size());
  while (size > 2) {
    const std::size_t length = std::min<std::size_t>(size - 2, std::size_t{data[1]} * 16);
    append_frame(file, data[0] % 6U, data + 2, length);
    data += 2 + length, size -= 2 + length;
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const Bytes file = (data[0] & 1U) != 0 ? Bytes(reinterpret_cast<const std::byte*>(data) + 1,
                                                 reinterpret_cast<const std::byte*>(data) + size)
                                         : file_of(data + 1, size - 1);
  auto trace = deft::trace::parse_trace(file);
  if (!trace) return 0;
  auto job = deft::replay::join_nodes({std::move(*trace)}, {"fuzz"});
  if (!job) return 0;
  const auto timeline = deft::replay::make_timeline(*job);
  for (const auto& slice : timeline.slices)
    if (slice.end_us < slice.begin_us || slice.track >= timeline.tracks.size()) std::abort();
  const auto measured = deft::replay::measure(*job);
  if (measured && measured->profile.buckets.size() <= 64) static_cast<void>(deft::replay::replay(*measured, {}));
  return 0;
}
