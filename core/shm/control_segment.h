// Views a worker's control segment as objects: its header and its two rings. layout.h describes the memory.
//
//   daemon:  auto view = ControlSegment::format(segment, epoch);   // a fresh segment, before its descriptor is passed
//   worker:  auto view = ControlSegment::open(segment);            // checks the header
//   Producer out(view.submission(), view.submission_records());
//
// The segment must outlive the view and all rings made from it.
#pragma once

#include <atomic>
#include <new>
#include <span>

#include "core/base/status.h"
#include "core/shm/layout.h"
#include "core/shm/segment.h"

namespace deft::shm {

class ControlSegment {
 public:
  // Writes the header. `segment` holds kControlSegmentBytes zero bytes.
  static ControlSegment format(const Segment& segment, std::uint64_t daemon_epoch) {
    auto* header = new (segment.data()) SegmentHeader;
    header->magic = kSegmentMagic;
    header->version = kLayoutVersion;
    header->ring_capacity = kRingCapacity;
    header->daemon_epoch = daemon_epoch;
    header->submission_offset = kSubmissionOffset;
    header->completion_offset = kCompletionOffset;
    header->segment_bytes = kControlSegmentBytes;
    return ControlSegment(segment.data());
  }

  // kViolation if the memory is no control segment; kMismatch, which names both layouts, if it is of another version.
  static Result<ControlSegment> open(const Segment& segment) {
    if (segment.bytes() < kControlSegmentBytes)
      return fail(ErrorKind::kViolation, "a control segment of " + std::to_string(segment.bytes()) + " bytes");
    const auto* header = reinterpret_cast<const SegmentHeader*>(segment.data());
    if (header->magic != kSegmentMagic) return fail(ErrorKind::kViolation, "shared memory that is not Deft's");
    if (header->version != kLayoutVersion)
      return fail(ErrorKind::kMismatch,
                  "the daemon's shared memory has layout " + std::to_string(header->version) + ", this library's has " +
                      std::to_string(kLayoutVersion),
                  "install the same version of Deft for the daemon and the workers");
    if (header->ring_capacity != kRingCapacity || header->submission_offset != kSubmissionOffset ||
        header->completion_offset != kCompletionOffset)
      return fail(ErrorKind::kViolation, "a control segment whose rings lie elsewhere");
    return ControlSegment(segment.data());
  }

  [[nodiscard]] SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  // The daemon calls beat() several times in a timeout, and a worker that waits sees by heartbeats() that it does not hang.
  void beat() const { std::atomic_ref(header().heartbeats).fetch_add(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t heartbeats() const {
    return std::atomic_ref(header().heartbeats).load(std::memory_order_relaxed);
  }
  [[nodiscard]] RingControl& submission() const { return control_at(kSubmissionOffset); }
  [[nodiscard]] RingControl& completion() const { return control_at(kCompletionOffset); }
  [[nodiscard]] std::span<Record> submission_records() const { return records_at(kSubmissionOffset); }
  [[nodiscard]] std::span<Record> completion_records() const { return records_at(kCompletionOffset); }

 private:
  explicit ControlSegment(std::byte* base) : base_(base) {}
  [[nodiscard]] RingControl& control_at(std::uint64_t offset) const {
    return *reinterpret_cast<RingControl*>(base_ + offset);
  }
  [[nodiscard]] std::span<Record> records_at(std::uint64_t offset) const {
    return {reinterpret_cast<Record*>(base_ + offset + sizeof(RingControl)), kRingCapacity};
  }
  std::byte* base_;
};

}  // namespace deft::shm
