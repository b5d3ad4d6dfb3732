// The file of one node's trace: `node0.trace`. A header, then frames, each compressed by zstd with a checksum.
//
//   auto writer = TraceWriter::create(folder, "node0.trace", header);   // an error names the path
//   writer->groups(groups);  writer->records(records);          // an error: the disk is full; nothing more is written
//   writer->finish(lost);
//
//   auto trace = read_trace(path);                              // an error: no trace, or none of this version
//   trace->problems                                             // "the file ends within a frame": the rest was read
//
// A file may be cut off (a killed daemon), or come from anywhere. The reader checks sizes before it takes memory, takes the
// frames up to the first that is wrong, and says what it left out. A writer and a NodeTrace belong to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/dtype.h"
#include "core/trace/record.h"
#include "core/trace/trace_folder.h"

namespace deft::trace {

inline constexpr std::uint64_t kMaxTraceBytes = std::uint64_t{1}
                                                << 30;  // of a file: a longer trace ends there, and says so

// Who wrote the trace, and what its numbers mean.
struct TraceHeader {
  std::string job;
  std::uint64_t incarnation = 0;  // of the job: files of one run have the same
  std::uint32_t node = 0;
  std::uint32_t nodes = 1;
  std::string host;
  // The clock of day on that host when the file was begun, to tell runs of a job apart; 0: an older version wrote the file.
  std::uint64_t begun_s = 0;
  std::vector<std::uint32_t> ranks = {};  // of the node's workers
  std::vector<std::string> links = {};
  std::map<std::string, std::string> options =
      {};                                // on which all nodes agree: policy, compression, partition_bytes, ...
  std::vector<std::string> codecs = {};  // of the job, by OrderTrace::codec. Files of older versions do not tell
  bool operator==(const TraceHeader&) const = default;
};

// A group of gradients: its tensors in the order of declaration, and its buckets in the order of the arena.
struct TraceGroup {
  // What gradients are made of. Files of older versions do not tell.
  struct Elements {
    model::DType dtype = model::DType::kFloat32;
    std::uint64_t coded_bytes =
        0;  // that a codec of the job may encode (core/model/tensors.h); of a tensor all or none
    bool operator==(const Elements&) const = default;
  };
  struct Tensor {
    std::string name;
    std::uint64_t bytes = 0;
    std::uint32_t forward_position = 0;
    std::optional<Elements> elements = {};
    bool operator==(const Tensor&) const = default;
  };
  struct Bucket {
    std::uint64_t bytes = 0;
    std::uint32_t forward_position = 0;
    std::vector<std::uint32_t> tensors = {};  // all that overlap it
    std::optional<Elements> elements = {};
    bool operator==(const Bucket&) const = default;
  };
  std::uint32_t group = 0;
  std::string name;
  std::vector<Tensor> tensors = {};
  std::vector<Bucket> buckets = {};
  bool operator==(const TraceGroup&) const = default;
};

struct NodeTrace {
  TraceHeader header;
  std::vector<TraceGroup> groups = {};
  std::vector<TraceRecord> records = {};
  std::uint64_t lost = 0;  // records that the node could not write
  bool complete = false;   // the writer has finished the file
  std::vector<std::string> problems = {};
};

class TraceWriter {
 public:
  // Replaces a file of that name, but follows no link. kInvalid if it cannot be made.
  static Result<std::unique_ptr<TraceWriter>> create(const TraceFolder& folder, const std::string& name,
                                                     const TraceHeader& header,
                                                     std::uint64_t most_bytes = kMaxTraceBytes);

  Result<void> group(const TraceGroup& group);
  Result<void> records(std::span<const TraceRecord> records);
  // Nothing can be written afterwards. `lost`: records that were not written. Their number grows if the file had no room.
  Result<void> finish(std::uint64_t lost);
  // Records for which the file had no room.
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }

 private:
  struct Closed {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  TraceWriter(std::string path, std::FILE* file, std::uint64_t most_bytes)
      : path_(std::move(path)), file_(file), most_bytes_(most_bytes) {}
  Result<void> frame(std::uint32_t type, std::span<const std::byte> content);
  Result<void> text_frame(std::uint32_t type, const std::string& text);

  std::string path_;
  std::unique_ptr<std::FILE, Closed> file_;
  const std::uint64_t most_bytes_;
  std::uint64_t written_ = 0;
  std::uint64_t left_out_ = 0;  // records beyond most_bytes_
};

inline constexpr std::size_t kMaxRecords = 64U << 20U;  // of a file: 4 GB

// Records beyond the first `most` are left out, and `problems` says so.
Result<NodeTrace> read_trace(const std::string& path, std::size_t most = kMaxRecords);
// The same, of a file's content.
Result<NodeTrace> parse_trace(std::span<const std::byte> content, std::size_t most = kMaxRecords);

// What can be told of a trace without reading its records.
struct TraceGlance {
  TraceHeader header;
  bool complete = false;  // the writer has finished the file
};
Result<TraceGlance> glance_at_trace(const std::string& path);

// The file of this trace that is still being written; empty: all are complete. Each node finishes its own in the background, after
// the trace was stopped. `path`: the file of one node; files beside it that are of the same run of the job belong to the trace, because
// nodes may share a disk. Blocks on the disk. kInvalid if the file at `path` cannot be read.
Result<std::string> unfinished_trace(const std::string& path);

}  // namespace deft::trace
