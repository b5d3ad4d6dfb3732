#include "core/link/mpi/all_reduce.h"

#include <algorithm>
#include <cstring>

#include "core/reduce/reduce.h"

namespace deft::link::mpi_backend {
namespace {

constexpr std::size_t kExchangeBytes = 64 << 10;  // what a node sends at most when everyone gets everything

}  // namespace

// Visits the peers beginning with the next node, so that not all nodes send to the same one at once; ends at a failure.
template <typename Visit>
bool AllReduce::each_peer(Visit visit) {
  for (std::uint32_t step = 1; step < carrier_.nodes(); ++step) {
    if (!visit((carrier_.node() + step) % carrier_.nodes())) return false;
  }
  return true;
}

bool AllReduce::start(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  Operation& operation = operations_.emplace_back();
  operation.data = data;
  operation.count = count;
  operation.element = model::dtype_bytes(dtype);
  operation.dtype = dtype;
  operation.op = op;
  cut(operation);
  operation.first_round = started_rounds_;
  started_rounds_ += operation.slices.rounds;
  if (count > 0)
    operation.tag = carrier_.begin(std::array{std::uint64_t{count}, std::uint64_t(dtype), std::uint64_t(op)});
  return expect_ahead() && fill_window();
}

void AllReduce::cut(Operation& operation) const {
  if (operation.count == 0) return;
  const std::size_t bytes = operation.count * operation.element;
  operation.whole = bytes * (carrier_.nodes() - 1) <= kExchangeBytes && bytes <= carrier_.slot_bytes();
  if (operation.whole) {
    operation.slices = {operation.count, operation.count, operation.count, 1};
  } else {
    operation.slices = cut_slices(operation.count, operation.element, carrier_.nodes(), carrier_.slot_bytes());
  }
}

bool AllReduce::finish() {
  Operation& operation = operations_.front();
  if (!(operation.whole ? finish_whole(operation) : finish_rounds(operation))) return false;
  operations_.pop_front();
  ++finished_;
  return true;
}

// Everyone has sent everything to everyone, and everyone reduces: one latency.
bool AllReduce::finish_whole(Operation& operation) {
  if (!reduce(operation, {0, operation.count})) return false;
  ++reduced_;
  // What was sent last may be all that the peers still wait for when this link closes.
  return expect_ahead() && fill_window() &&
         each_peer([&](std::uint32_t peer) { return carrier_.flush(peer, Stream::kSegments, operation.given[peer]); });
}

// Results are waited for kWindow rounds behind the reduction.
bool AllReduce::finish_rounds(Operation& operation) {
  for (std::uint64_t round = 0; round < operation.slices.rounds + kWindow; ++round) {
    if (round >= kWindow && !receive_results(operation, round - kWindow)) return false;
    if (round >= operation.slices.rounds) continue;
    const Range mine = operation.slices.segment_of(carrier_.node(), round);
    if (mine.count > 0 && !reduce(operation, mine)) return false;
    ++reduced_;
    if (!expect_ahead()) return false;  // before the results, which bring the peers' next segments here
    if (mine.count > 0 && !send_results(operation, round)) return false;
    if (!fill_window()) return false;
  }
  return each_peer([&](std::uint32_t peer) {
    return carrier_.flush(peer, Stream::kResults, carrier_.given(peer, Stream::kResults));
  });
}

// Tells MPI of the next messages of each peer, as far as there are slots for them.
bool AllReduce::expect_ahead() {
  return each_peer(
      [&](std::uint32_t peer) { return expect_of(peer, Stream::kSegments) && expect_of(peer, Stream::kResults); });
}

bool AllReduce::expect_of(std::uint32_t peer, Stream stream) {
  Cursor& cursor = cursors_[peer][static_cast<std::size_t>(stream)];
  for (; cursor.operation < finished_ + operations_.size(); cursor = {cursor.operation + 1, 0}) {
    const Operation& operation = operations_[cursor.operation - finished_];
    for (; cursor.round < operation.slices.rounds; ++cursor.round) {
      const std::size_t count = message_from(operation, peer, stream, cursor.round).count;
      if (count == 0) continue;
      if (!carrier_.can_expect(peer, stream)) return true;
      if (!carrier_.expect(peer, stream, operation.tag, count * operation.element)) return false;
    }
  }
  return true;
}

// Sends the segments of as many rounds as may leave now, of the operations in their order.
bool AllReduce::fill_window() {
  for (Operation& operation : operations_) {
    for (; operation.sent < operation.slices.rounds; ++operation.sent) {
      if (operation.first_round + operation.sent >= reduced_ + kWindow) return true;
      if (!send_segments(operation, operation.sent)) return false;
    }
  }
  return true;
}

bool AllReduce::send_segments(Operation& operation, std::uint64_t round) {
  operation.given.resize(carrier_.nodes());
  return each_peer([&](std::uint32_t peer) {
    const Range range = operation.whole ? Range{0, operation.count} : operation.slices.segment_of(peer, round);
    const bool sent = send(operation, peer, Stream::kSegments, range);
    operation.given[peer] = carrier_.given(peer, Stream::kSegments);
    return sent;
  });
}

bool AllReduce::send_results(const Operation& operation, std::uint64_t round) {
  const Range range = operation.slices.segment_of(carrier_.node(), round);
  return each_peer([&](std::uint32_t peer) { return send(operation, peer, Stream::kResults, range); });
}

bool AllReduce::send(const Operation& operation, std::uint32_t peer, Stream stream, Range range) {
  if (range.count == 0) return true;
  const std::span<const std::byte> bytes{operation.data + range.first * operation.element,
                                         range.count * operation.element};
  return carrier_.send(peer, stream, operation.tag, bytes, Carrier::Pace::kFree);
}

// Reduces this node's elements `mine` with what the peers sent for them.
bool AllReduce::reduce(const Operation& operation, Range mine) {
  std::byte* const own = operation.data + mine.first * operation.element;
  inputs_.assign(carrier_.nodes(), own);
  const bool received = each_peer([&](std::uint32_t peer) {
    inputs_[peer] = carrier_.receive(peer, Stream::kSegments);
    return inputs_[peer] != nullptr;
  });
  if (received) reduce::reduce(own, inputs_, mine.count, operation.dtype, operation.op);
  return received;
}

bool AllReduce::receive_results(const Operation& operation, std::uint64_t round) {
  return each_peer([&](std::uint32_t peer) {
           const Range range = operation.slices.segment_of(peer, round);
           if (range.count == 0) return true;
           const std::byte* result = carrier_.receive(peer, Stream::kResults);
           if (result == nullptr) return false;
           std::memcpy(operation.data + range.first * operation.element, result, range.count * operation.element);
           return true;
         }) &&
         expect_ahead();
}

Range AllReduce::message_from(const Operation& operation, std::uint32_t peer, Stream stream,
                              std::uint64_t round) const {
  if (!operation.whole) return operation.slices.segment_of(stream == Stream::kResults ? peer : carrier_.node(), round);
  return stream == Stream::kResults ? Range{} : Range{0, operation.count};
}

}  // namespace deft::link::mpi_backend
