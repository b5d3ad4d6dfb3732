// Collectives on any memory, staged through a heap in shared memory.
//
//   auto operation = Operation::start(session, heaps, {.name = "loss", .collective = ipc::Collective::kAllReduce,
//   ...});
//   (*operation)->finish(output);
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/client/heaps.h"
#include "core/client/session.h"
#include "core/ipc/messages.h"
#include "core/model/dtype.h"

namespace deft::client {

struct Request {
  std::string name;  // matches the operation across ranks
  ipc::Collective collective{};
  const void* input = nullptr;
  std::vector<std::uint64_t> counts;  // elements: one number, or for all-gather one for each rank
  std::uint32_t dtype = 0;            // as the caller gave it: checked here
  std::uint32_t reduce_op = 0;
  std::int64_t root = 0;
};

class Operation {
 public:
  // Copies the input and starts.
  static Result<std::unique_ptr<Operation>> start(Session& session, Heaps& heaps, const Request& request);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  Result<bool> poll();
  // Waits and copies the result to `output` unless that is nullptr.
  Result<void> finish(void* output);

 private:
  struct Block {  // of one rank; all-reduce and broadcast have one block in all
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  Operation(Session& session, Heaps& heaps, std::string name)
      : session_(session), heaps_(heaps), name_(std::move(name)) {}
  Result<void> lay_out(const Request& request);
  Result<void> stage(const Request& request);
  [[nodiscard]] const Block& own_block() const;

  Session& session_;
  Heaps& heaps_;
  std::string name_;
  std::vector<Block> blocks_;  // in the order of ranks, which is the order of the output
  std::uint64_t total_bytes_ = 0;
  std::uint64_t number_ = 0;
  Piece piece_;
  bool settled_ = false;  // the daemon is done with the piece
};

}  // namespace deft::client
