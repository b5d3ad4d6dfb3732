#include "daemon/channel/channel.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/reduce/reduce.h"

namespace deft::daemon {
namespace {

void take(const Transfer& transfer, const std::byte* data, std::size_t bytes) {
  if (!transfer.replay_buffer || transfer.replay_buffer->filled) return;
  ReplayBuffer& kept = *transfer.replay_buffer;
  kept.data = std::make_unique_for_overwrite<std::byte[]>(bytes);
  kept.bytes = bytes;
  if (bytes > 0) std::memcpy(kept.data.get(), data, bytes);
  kept.filled = true;
}

std::size_t sum_of(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

}  // namespace

Channel::Channel(std::string name, std::uint32_t node, Report report, const Channel* passes)
    : name_(std::move(name)), node_(node), report_(std::move(report)), passes_(passes) {}

bool Channel::has_room_for(const Transfer& transfer) const {
  if (in_flight_.empty()) return true;
  return transfer.collective == ipc::Collective::kAllReduce && link_ != nullptr && in_flight_.size() < link_->depth();
}

void Channel::start(Transfer transfer) {
  InFlight& entry = in_flight_.emplace_back();
  entry.transfer = std::move(transfer);
  entry.began_us = MonotonicClock::now();
  if (passes_ != nullptr) entry.passed_ended = passes_->ended_;
  ++started_;
  TransferDone& done = entry.done;
  done.token = entry.transfer.token;
  if (entry.transfer.buffers.empty() && entry.transfer.replay_buffer) use_own_memory(entry);
  switch (entry.transfer.collective) {
    case ipc::Collective::kAllReduce: done.result = start_all_reduce(entry); break;
    case ipc::Collective::kBroadcast: done.result = run_broadcast(entry.transfer, done); break;
    case ipc::Collective::kAllGather: done.result = run_all_gather(entry.transfer, done); break;
    case ipc::Collective::kBarrier: break;
  }
}

void Channel::finish_next() {
  if (in_flight_.front().link_began_us == 0) return report(0, in_flight_.front().done.result);
  const auto ended = link_->finish_next();
  if (!ended) return report(0, tl::unexpected(ended.error()));
  if (!*ended) return;
  std::size_t place = 0;  // among all flights, of that one among those in the link
  for (std::size_t before = **ended; before > 0 || in_flight_[place].link_began_us == 0; ++place)
    if (in_flight_[place].link_began_us != 0) --before;
  report(place, {});
}

void Channel::report(std::size_t place, Result<void> result) {
  InFlight& entry = in_flight_[place];
  TransferDone& done = entry.done;
  done.result = std::move(result);
  const Transfer& transfer = entry.transfer;
  const TimeUs link_ended_us = MonotonicClock::now();
  if (done.result && transfer.collective == ipc::Collective::kAllReduce)
    for (std::size_t i = 1; i < transfer.buffers.size(); ++i)
      std::memcpy(transfer.buffers[i], transfer.buffers.front(), done.bytes);
  if (!done.result) done.result = tl::unexpected(done.result.error().in("link " + name_));
  measure(entry, place, link_ended_us);
  TransferDone ended = std::move(done);
  in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(place));
  ++ended_;
  report_(std::move(ended));
}

// The times of flights add up: each counts from the end of the one before, or from where the oldest under way began.
void Channel::measure(InFlight& entry, std::size_t place, TimeUs link_ended_us) {
  const InFlight& oldest = in_flight_.front();
  TransferDone& done = entry.done;
  if (entry.link_began_us != 0) {
    const TimeUs link_began_us = oldest.link_began_us != 0 ? oldest.link_began_us : entry.link_began_us;
    done.overlapped = place > 0 || entry.link_began_us < link_free_us_;
    done.link_us = link_ended_us - std::max(link_began_us, link_free_us_);
    link_free_us_ = link_ended_us;
  }
  const TimeUs now = MonotonicClock::now();
  done.busy_us = now - std::max(oldest.began_us, free_us_);
  free_us_ = now;
  // Where all that ever started there had ended before, nothing shared the wire.
  if (passes_ == nullptr || passes_->started_ == entry.passed_ended) return;
  done.link_us.reset();
  done.busy_us = 0;
}

// In an all-gather all blocks of the nodes before this one come first.
std::size_t Channel::own_offset(const Transfer& transfer) const {
  const auto begin = transfer.node_bytes.begin();
  return std::accumulate(begin, begin + node_, std::size_t{0});
}

void Channel::use_own_memory(InFlight& entry) const {
  Transfer& transfer = entry.transfer;
  const ReplayBuffer& kept = *transfer.replay_buffer;
  if (transfer.collective == ipc::Collective::kBarrier) return;
  const bool gathers = transfer.collective == ipc::Collective::kAllGather;
  const std::size_t bytes = gathers ? sum_of(transfer.node_bytes) : transfer.count * model::dtype_bytes(transfer.dtype);
  entry.own = std::make_unique_for_overwrite<std::byte[]>(bytes);
  transfer.buffers = {entry.own.get()};
  transfer.root_local = 0;
  if (kept.bytes > 0) std::memcpy(entry.own.get() + (gathers ? own_offset(transfer) : 0), kept.data.get(), kept.bytes);
}

Result<void> Channel::start_all_reduce(InFlight& entry) {
  const Transfer& transfer = entry.transfer;
  std::byte* const sum = transfer.buffers.front();
  entry.done.bytes = transfer.count * model::dtype_bytes(transfer.dtype);
  if (transfer.replay_buffer && transfer.replay_buffer->filled) {
    if (!entry.own && entry.done.bytes > 0) std::memcpy(sum, transfer.replay_buffer->data.get(), entry.done.bytes);
  } else if (transfer.buffers.size() > 1) {
    reduce::reduce(sum, {transfer.buffers.data(), transfer.buffers.size()}, transfer.count, transfer.dtype,
                   transfer.op);
  }
  if (link_ == nullptr) return {};
  take(transfer, sum, entry.done.bytes);
  entry.link_began_us = MonotonicClock::now();
  auto started = link_->start_all_reduce(sum, transfer.count, transfer.dtype, transfer.op, transfer.priority);
  if (!started) entry.link_began_us = 0;
  return started;
}

Result<void> Channel::run_broadcast(const Transfer& transfer, TransferDone& done) {
  const std::size_t source = transfer.root_node == node_ ? transfer.root_local : 0;
  done.bytes = transfer.count * model::dtype_bytes(transfer.dtype);
  if (link_ != nullptr) {
    take(transfer, transfer.buffers[source], transfer.root_node == node_ ? done.bytes : 0);
    const TimeUs began = MonotonicClock::now();
    if (auto ok = link_->broadcast(transfer.buffers[source], done.bytes, transfer.root_node); !ok) return ok;
    done.link_us = MonotonicClock::now() - began;
  }
  for (std::size_t i = 0; i < transfer.buffers.size(); ++i)
    if (i != source) std::memcpy(transfer.buffers[i], transfer.buffers[source], done.bytes);
  return {};
}

// Every worker's buffer has room for all blocks, in the order of nodes and, within a node, of ranks.
Result<void> Channel::run_all_gather(const Transfer& transfer, TransferDone& done) {
  std::byte* const all = transfer.buffers.front();
  const std::size_t total = sum_of(transfer.node_bytes);
  std::size_t own = own_offset(transfer);
  for (std::size_t i = 0; i < transfer.buffers.size(); ++i) {
    if (i > 0) std::memcpy(all + own, transfer.buffers[i] + own, transfer.local_bytes[i]);
    own += transfer.local_bytes[i];
  }
  done.bytes = total;
  if (link_ != nullptr) {
    take(transfer, all + own_offset(transfer), transfer.node_bytes[node_]);
    const TimeUs began = MonotonicClock::now();
    if (auto ok = link_->all_gather(all, transfer.node_bytes); !ok) return ok;
    done.link_us = MonotonicClock::now() - began;
  }
  for (std::size_t i = 1; i < transfer.buffers.size(); ++i) std::memcpy(transfer.buffers[i], all, total);
  return {};
}

}  // namespace deft::daemon
