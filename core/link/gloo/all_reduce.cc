#include "core/link/gloo/all_reduce.h"

#include <gloo/transport/buffer.h>
#include <gloo/transport/pair.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/link/gloo/signals.h"
#include "core/reduce/reduce.h"

namespace deft::link::gloo_backend {
namespace {

constexpr std::size_t kSlotBytes = 256 << 10;     // a segment: long enough to pay for its wake-up, short enough for L2
constexpr std::size_t kScratchBytes = 64 << 20;   // of all peers together: with many nodes the segments get shorter
constexpr std::size_t kExchangeBytes = 64 << 10;  // what a node sends at most when everyone gets everything

// What is small enough to be sent whole to everyone.
std::size_t whole_bytes_for(std::uint32_t nodes) {
  return std::clamp(kExchangeBytes / std::max(1U, nodes - 1) / kGranuleBytes * kGranuleBytes, kGranuleBytes,
                    kExchangeBytes);
}

std::size_t slot_bytes_for(std::uint32_t nodes, std::uint64_t window) {
  const std::size_t share = kScratchBytes / window / std::max(1U, nodes - 1);
  return std::clamp(share / kGranuleBytes * kGranuleBytes, std::size_t{4096}, kSlotBytes);
}

// gloo's numbers for buffers. A buffer that goes takes the registration of its number on that pair with it, even if it
// only sends; so the two directions of a pair use different numbers.
int directed(std::uint64_t number, std::uint32_t receiver, std::uint32_t sender) {
  return static_cast<int>(number << 1 | (receiver < sender ? 0U : 1U));
}

constexpr std::uint64_t kRoundsNumber = 0;
constexpr std::uint64_t kExchangesNumber = 1;

// The number of the results of one operation. Nodes that disagree about the operation get different numbers: then
// nothing is delivered to the wrong place, and both sides wait until they are aborted.
std::uint64_t result_number(std::uint64_t operation, std::size_t count, model::DType dtype, model::ReduceOp op) {
  std::uint64_t hash = operation;
  for (const std::uint64_t word : {std::uint64_t{count}, std::uint64_t(dtype), std::uint64_t(op)}) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29;
  }
  return (hash >> 35) + kExchangesNumber + 1;
}

}  // namespace

// Visits the peers beginning with the next node, so that not all nodes send to the same one at once.
template <typename Visit>
void AllReduce::each_peer(Visit visit) const {
  for (std::uint32_t step = 1; step < mesh_.nodes(); ++step) {
    const std::uint32_t peer = (mesh_.node() + step) % mesh_.nodes();
    naming_peer(peer, [&] { visit(peer); });
  }
}

AllReduce::AllReduce(Mesh& mesh)
    : mesh_(mesh),
      slot_bytes_(slot_bytes_for(mesh.nodes(), kWindow)),
      whole_bytes_(whole_bytes_for(mesh.nodes())),
      inboxes_(mesh.nodes()) {
  each_peer([this](std::uint32_t peer) {
    Inbox& inbox = inboxes_[peer];
    inbox.scratch.resize(kWindow * slot_bytes_);
    inbox.small.resize(kExchangeSlots * whole_bytes_);
    auto& pair = mesh_.pair(peer);
    inbox.rounds =
        pair.createRecvBuffer(directed(kRoundsNumber, mesh_.node(), peer), inbox.scratch.data(), inbox.scratch.size());
    inbox.exchanges =
        pair.createRecvBuffer(directed(kExchangesNumber, mesh_.node(), peer), inbox.small.data(), inbox.small.size());
  });
  const AllSignalsBlocked inherited_by_the_threads;
  reducing_ = std::thread([this] { run(to_reduce_, &Operation::has_elements, &AllReduce::reduce_operation); });
  collecting_ = std::thread([this] { run(to_collect_, &Operation::has_rounds, &AllReduce::collect_operation); });
  pthread_setname_np(reducing_.native_handle(), "gloo reduces");
  pthread_setname_np(collecting_.native_handle(), "gloo collects");
}

AllReduce::~AllReduce() { halt(); }

void AllReduce::start(std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op) {
  Operation operation;
  operation.data = data;
  operation.count = count;
  operation.element = model::dtype_bytes(dtype);
  operation.dtype = dtype;
  operation.op = op;
  operation.peers.resize(mesh_.nodes());
  operation.ended = count == 0;
  cut(operation);
  if (count > 0) connect(operation, result_number(started_++, count, dtype, op));
  const std::lock_guard lock(mutex_);
  if (failure_) throw PeerFailure(*failure_);
  operations_.push_back(std::move(operation));
  if (count == 0) return;
  try {
    begin(operations_.back());
  } catch (const PeerFailure& failure) {
    // Before a thread can begin it: of what is registered after a pair has failed, gloo tells no waiting thread.
    end_by(failure);
    throw;
  }
}

void AllReduce::finish() {
  while (!finish_next()) {
  }
}

bool AllReduce::finish_next() {
  Operation oldest;  // its buffers go without the lock
  std::unique_lock lock(mutex_);
  const bool& ended = operations_.front().ended;
  news_.wait(lock, [&] { return ended || failure_ || woken_; });
  woken_ = false;
  if (!ended && failure_) throw PeerFailure(*failure_);
  if (!ended) return false;
  oldest = std::move(operations_.front());
  operations_.pop_front();
  ++finished_;
  return true;
}

void AllReduce::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  news_.notify_one();
}

void AllReduce::halt() {
  {
    const std::lock_guard lock(mutex_);
    halted_ = true;
  }
  to_reduce_.notify_one();
  to_collect_.notify_one();
  if (reducing_.joinable()) reducing_.join();
  if (collecting_.joinable()) collecting_.join();
}

void AllReduce::cut(Operation& operation) const {
  operation.whole = operation.count * operation.element <= whole_bytes_;
  if (operation.whole) return;
  operation.slices = cut_slices(operation.count, operation.element, mesh_.nodes(), slot_bytes_);
}

// From where the segments go, where the results of each peer's slice will go, and from where ours are sent.
void AllReduce::connect(Operation& operation, std::uint64_t number) {
  const std::size_t bytes = operation.count * operation.element;
  each_peer([&](std::uint32_t node) {
    auto& pair = mesh_.pair(node);
    Peer& peer = operation.peers[node];
    const std::uint64_t inbox = operation.whole ? kExchangesNumber : kRoundsNumber;
    if (!operation.whole) {
      peer.result_receive = pair.createRecvBuffer(directed(number, mesh_.node(), node), operation.data, bytes);
      peer.result_send = pair.createSendBuffer(directed(number, node, mesh_.node()), operation.data, bytes);
    }
    peer.segment_send = pair.createSendBuffer(directed(inbox, node, mesh_.node()), operation.data, bytes);
  });
}

// Sends what may go already.
void AllReduce::begin(Operation& operation) {
  if (operation.whole) {
    operation.first_round = started_whole_++;
    send_whole(operation);
  } else {
    operation.first_round = started_rounds_;
    started_rounds_ += operation.slices.rounds;
    fill_window();
    to_collect_.notify_one();
  }
  to_reduce_.notify_one();
}

// Into slots of which the peers are done with what was there before: to start this one, the one kDepth before it was
// finished here, so every peer had started that, hence finished the one kDepth before that.
void AllReduce::send_whole(Operation& operation) {
  const std::size_t bytes = operation.count * operation.element;
  each_peer([&](std::uint32_t node) {
    operation.peers[node].segment_send->send(0, bytes, slot_of(operation, 0));
    ++operation.peers[node].segments_unsent;
  });
}

// Sends the segments of as many rounds as have a free slot, of the operations in their order.
void AllReduce::fill_window() {
  for (Operation& operation : operations_) {
    for (; operation.sent < operation.slices.rounds; ++operation.sent) {
      if (operation.first_round + operation.sent >= acknowledged_ + kWindow) return;
      send_segments(operation, operation.sent);
    }
  }
}

// A thread: handles, in their order, all operations that need it, until there is a failure or the halt.
void AllReduce::run(std::condition_variable& work, bool (Operation::*needs)() const,
                    void (AllReduce::*handle)(Operation&)) {
  try {
    std::uint64_t next = 0;
    while (Operation* const operation = await_operation(next, work, needs)) (this->*handle)(*operation);
  } catch (const PeerFailure& failure) {
    const std::lock_guard lock(mutex_);
    end_by(failure);
  }
}

void AllReduce::end_by(const PeerFailure& failure) {
  if (!failure_) failure_ = failure;
  to_reduce_.notify_one();
  to_collect_.notify_one();
  news_.notify_one();
}

// The first of the operations from number `next` on for which `needs` holds; `next` is then that of the one after it. Null
// when there will be none. The others may end and go at any time.
AllReduce::Operation* AllReduce::await_operation(std::uint64_t& next, std::condition_variable& work,
                                                 bool (Operation::*needs)() const) {
  std::unique_lock lock(mutex_);
  while (!is_over()) {
    for (next = std::max(next, finished_); next < finished_ + operations_.size();) {
      Operation& operation = operations_[next++ - finished_];
      if ((operation.*needs)()) return &operation;
    }
    work.wait(lock);
  }
  return nullptr;
}

void AllReduce::set(bool Operation::*flag, Operation& operation, std::condition_variable& awaits) {
  const std::lock_guard lock(mutex_);
  operation.*flag = true;
  awaits.notify_one();
}

void AllReduce::reduce_operation(Operation& operation) {
  if (!operation.whole) {
    for (std::uint64_t round = 0; round < operation.slices.rounds; ++round) reduce_round(operation, round);
    return set(&Operation::reduced, operation, to_collect_);
  }
  each_peer([&](std::uint32_t node) { inboxes_[node].exchanges->waitRecv(); });
  await_sends(operation);
  reduce(operation, {0, operation.count}, slot_of(operation, 0));
  set(&Operation::ended, operation, news_);
}

void AllReduce::reduce_round(Operation& operation, std::uint64_t round) {
  const Range mine = operation.slices.segment_of(mesh_.node(), round);
  if (mine.count == 0) return;
  each_peer([&](std::uint32_t node) { inboxes_[node].rounds->waitRecv(); });
  reduce(operation, mine, slot_of(operation, round));
  send_results(operation, round);
}

void AllReduce::collect_operation(Operation& operation) {
  for (std::uint64_t round = 0; round < operation.slices.rounds; ++round) {
    receive_results(operation, round);
    const std::lock_guard lock(mutex_);
    ++acknowledged_;
    fill_window();
  }
  {
    std::unique_lock lock(mutex_);
    to_collect_.wait(lock, [&] { return operation.reduced || is_over(); });
    if (!operation.reduced) return;
  }
  await_sends(operation);
  set(&Operation::ended, operation, news_);
}

void AllReduce::send_segments(Operation& operation, std::uint64_t round) {
  each_peer([&](std::uint32_t node) {
    const Range range = operation.slices.segment_of(node, round);
    if (range.count == 0) return;
    Peer& peer = operation.peers[node];
    peer.segment_send->send(range.first * operation.element, range.count * operation.element,
                            slot_of(operation, round));
    ++peer.segments_unsent;
  });
}

void AllReduce::send_results(Operation& operation, std::uint64_t round) {
  const Range range = operation.slices.segment_of(mesh_.node(), round);
  const std::size_t offset = range.first * operation.element;
  each_peer([&](std::uint32_t node) {
    Peer& peer = operation.peers[node];
    peer.result_send->send(offset, range.count * operation.element, offset);
    ++peer.results_unsent;
  });
}

void AllReduce::receive_results(Operation& operation, std::uint64_t round) {
  each_peer([&](std::uint32_t node) {
    if (operation.slices.segment_of(node, round).count > 0) operation.peers[node].result_receive->waitRecv();
  });
}

void AllReduce::await_sends(Operation& operation) {
  each_peer([&](std::uint32_t node) {
    Peer& peer = operation.peers[node];
    for (; peer.segments_unsent > 0; --peer.segments_unsent) peer.segment_send->waitSend();
    for (; peer.results_unsent > 0; --peer.results_unsent) peer.result_send->waitSend();
  });
}

// Reduces elements `range` with what the peers sent for them into `slot`.
void AllReduce::reduce(const Operation& operation, Range range, std::size_t slot) {
  std::byte* const mine = operation.data + range.first * operation.element;
  inputs_.assign(mesh_.nodes(), mine);
  each_peer([&](std::uint32_t node) {
    Inbox& inbox = inboxes_[node];
    inputs_[node] = (operation.whole ? inbox.small : inbox.scratch).data() + slot;
  });
  reduce::reduce(mine, inputs_, range.count, operation.dtype, operation.op);
}

std::size_t AllReduce::slot_of(const Operation& operation, std::uint64_t round) const {
  if (operation.whole) return operation.first_round % kExchangeSlots * whole_bytes_;
  return (operation.first_round + round) % kWindow * slot_bytes_;
}

}  // namespace deft::link::gloo_backend
