// A collective on any memory. The input and the result go through a staging buffer in shared memory.
//
//   CollectiveCall call{.name = "loss", .collective = ipc::Collective::kAllReduce, ...};
//   auto started = StagedCollective::start(session, buffers, call);   // copies the input
//   (*started)->finish(output);                                       // waits, and copies the result
//
// One thread at a time. The session and the buffers must outlive the object.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/client/session.h"
#include "core/client/staging_buffers.h"
#include "core/ipc/messages.h"
#include "core/model/dtype.h"

namespace deft::client {

// The arguments of a collective, as the caller gave them. start() checks them.
struct CollectiveCall {
  std::string name;  // the same on all ranks
  ipc::Collective collective{};
  const void* input = nullptr;
  std::vector<std::uint64_t> counts;  // elements: one number, or for all-gather a number for each rank
  std::uint32_t dtype = 0;
  std::uint32_t reduce_op = 0;
  std::int64_t root = 0;
  std::string terms;  // words that must be the same on all ranks
};

class StagedCollective {
 public:
  // Copies the input and starts the collective. kInvalid for wrong arguments.
  static Result<std::unique_ptr<StagedCollective>> start(Session& session, StagingBuffers& buffers,
                                                         const CollectiveCall& call);
  ~StagedCollective();
  StagedCollective(const StagedCollective&) = delete;
  StagedCollective& operator=(const StagedCollective&) = delete;

  [[nodiscard]] std::uint64_t number() const { return number_; }  // in the session's RequestTable
  // True if the result is there. Never waits.
  Result<bool> poll();
  // Waits until the result is there, or until `deadline_us` (MonotonicClock). True if it is there.
  Result<bool> wait_until(TimeUs deadline_us);
  // Waits for the result, and copies it to `output` unless that is nullptr. The error of the collective if it failed.
  Result<void> finish(void* output);

 private:
  struct Block {  // of one rank; all-reduce and broadcast have one block in all
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  StagedCollective(Session& session, StagingBuffers& buffers, std::string name)
      : session_(session), buffers_(buffers), name_(std::move(name)) {}
  Result<void> lay_out(const CollectiveCall& call);
  Result<void> stage(const CollectiveCall& call);
  [[nodiscard]] const Block& own_block() const;

  Session& session_;
  StagingBuffers& buffers_;
  std::string name_;
  std::vector<Block> blocks_;  // in the order of ranks, which is the order of the output
  std::uint64_t total_bytes_ = 0;
  std::uint64_t number_ = 0;
  Piece piece_;
  bool settled_ = false;  // the daemon is done with the piece
};

}  // namespace deft::client
