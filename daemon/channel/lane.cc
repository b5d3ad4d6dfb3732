#include "daemon/channel/lane.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/reduce/reduce.h"

namespace deft::daemon {
namespace {

void take(const Transfer& transfer, const std::byte* data, std::size_t bytes) {
  if (!transfer.contribution || transfer.contribution->taken) return;
  Contribution& kept = *transfer.contribution;
  kept.data = std::make_unique_for_overwrite<std::byte[]>(bytes);
  kept.bytes = bytes;
  if (bytes > 0) std::memcpy(kept.data.get(), data, bytes);
  kept.taken = true;
}

std::size_t sum_of(const std::vector<std::size_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

}  // namespace

Lane::Lane(std::string name, std::uint32_t node, Report report, const Lane* passes)
    : name_(std::move(name)), node_(node), report_(std::move(report)), passes_(passes) {}

bool Lane::has_room_for(const Transfer& transfer) const {
  if (flights_.empty()) return true;
  return transfer.collective == ipc::Collective::kAllReduce && link_ != nullptr && flights_.size() < link_->depth();
}

void Lane::start(Transfer transfer) {
  Flight& flight = flights_.emplace_back();
  flight.transfer = std::move(transfer);
  flight.began_us = MonotonicClock::now();
  if (passes_ != nullptr) flight.passed_ended = passes_->ended_;
  ++started_;
  TransferDone& done = flight.done;
  done.token = flight.transfer.token;
  if (flight.transfer.buffers.empty() && flight.transfer.contribution) use_own_memory(flight);
  switch (flight.transfer.collective) {
    case ipc::Collective::kAllReduce: done.result = start_all_reduce(flight); break;
    case ipc::Collective::kBroadcast: done.result = run_broadcast(flight.transfer, done); break;
    case ipc::Collective::kAllGather: done.result = run_all_gather(flight.transfer, done); break;
    case ipc::Collective::kBarrier: break;
  }
}

void Lane::finish_next() {
  if (flights_.front().link_began_us == 0) return report(0, flights_.front().done.result);
  const auto ended = link_->finish_next();
  if (!ended) return report(0, tl::unexpected(ended.error()));
  if (!*ended) return;
  std::size_t place = 0;  // among all flights, of that one among those in the link
  for (std::size_t before = **ended; before > 0 || flights_[place].link_began_us == 0; ++place)
    if (flights_[place].link_began_us != 0) --before;
  report(place, {});
}

void Lane::report(std::size_t place, Result<void> result) {
  Flight& flight = flights_[place];
  TransferDone& done = flight.done;
  done.result = std::move(result);
  const Transfer& transfer = flight.transfer;
  const TimeUs link_ended_us = MonotonicClock::now();
  if (done.result && transfer.collective == ipc::Collective::kAllReduce)
    for (std::size_t i = 1; i < transfer.buffers.size(); ++i)
      std::memcpy(transfer.buffers[i], transfer.buffers.front(), done.bytes);
  if (!done.result) done.result = tl::unexpected(done.result.error().in("link " + name_));
  measure(flight, place, link_ended_us);
  TransferDone ended = std::move(done);
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(place));
  ++ended_;
  report_(std::move(ended));
}

// The times of flights add up: each counts from the end of the one before, or from where the oldest under way began.
void Lane::measure(Flight& flight, std::size_t place, TimeUs link_ended_us) {
  const Flight& oldest = flights_.front();
  TransferDone& done = flight.done;
  if (flight.link_began_us != 0) {
    const TimeUs link_began_us = oldest.link_began_us != 0 ? oldest.link_began_us : flight.link_began_us;
    done.overlapped = place > 0 || flight.link_began_us < link_free_us_;
    done.link_us = link_ended_us - std::max(link_began_us, link_free_us_);
    link_free_us_ = link_ended_us;
  }
  const TimeUs now = MonotonicClock::now();
  done.busy_us = now - std::max(oldest.began_us, free_us_);
  free_us_ = now;
  // Where all that ever started there had ended before, nothing shared the wire.
  if (passes_ == nullptr || passes_->started_ == flight.passed_ended) return;
  done.link_us.reset();
  done.busy_us = 0;
}

// In an all-gather all blocks of the nodes before this one come first.
std::size_t Lane::own_offset(const Transfer& transfer) const {
  const auto begin = transfer.node_bytes.begin();
  return std::accumulate(begin, begin + node_, std::size_t{0});
}

void Lane::use_own_memory(Flight& flight) const {
  Transfer& transfer = flight.transfer;
  const Contribution& kept = *transfer.contribution;
  if (transfer.collective == ipc::Collective::kBarrier) return;
  const bool gathers = transfer.collective == ipc::Collective::kAllGather;
  const std::size_t bytes = gathers ? sum_of(transfer.node_bytes) : transfer.count * model::dtype_bytes(transfer.dtype);
  flight.own = std::make_unique_for_overwrite<std::byte[]>(bytes);
  transfer.buffers = {flight.own.get()};
  transfer.root_local = 0;
  if (kept.bytes > 0) std::memcpy(flight.own.get() + (gathers ? own_offset(transfer) : 0), kept.data.get(), kept.bytes);
}

Result<void> Lane::start_all_reduce(Flight& flight) {
  const Transfer& transfer = flight.transfer;
  std::byte* const sum = transfer.buffers.front();
  flight.done.bytes = transfer.count * model::dtype_bytes(transfer.dtype);
  if (transfer.contribution && transfer.contribution->taken) {
    if (!flight.own && flight.done.bytes > 0) std::memcpy(sum, transfer.contribution->data.get(), flight.done.bytes);
  } else if (transfer.buffers.size() > 1) {
    reduce::reduce(sum, {transfer.buffers.data(), transfer.buffers.size()}, transfer.count, transfer.dtype,
                   transfer.op);
  }
  if (link_ == nullptr) return {};
  take(transfer, sum, flight.done.bytes);
  flight.link_began_us = MonotonicClock::now();
  auto started = link_->start_all_reduce(sum, transfer.count, transfer.dtype, transfer.op, transfer.urgency);
  if (!started) flight.link_began_us = 0;
  return started;
}

Result<void> Lane::run_broadcast(const Transfer& transfer, TransferDone& done) {
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
Result<void> Lane::run_all_gather(const Transfer& transfer, TransferDone& done) {
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
