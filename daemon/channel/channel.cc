#include "daemon/channel/channel.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/base/streaming_copy.h"
#include "core/reduce/reduce.h"

namespace deft::daemon {
namespace {

std::size_t sum_of(std::span<const std::size_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

std::size_t bytes_of(const Transfer& transfer) {
  if (transfer.collective == ipc::Collective::kAllGather) return sum_of(transfer.node_bytes);
  return transfer.count * model::dtype_bytes(transfer.dtype);
}

// The bytes of each node's share of a reduction.
std::vector<std::size_t> shares_of(const Transfer& transfer, std::uint32_t nodes) {
  const auto reduction = link::WorkRequest::reduce_scatter(nullptr, transfer.count, transfer.dtype, transfer.op);
  std::vector<std::size_t> shares;
  for (std::uint32_t node = 0; node < nodes; ++node)
    shares.push_back(reduction.owned_by(node, nodes).count * model::dtype_bytes(transfer.dtype));
  return shares;
}

// The request for data that travels as it is.
link::WorkRequest plain_request(const Transfer& transfer, std::byte* data, std::uint32_t nodes) {
  if (transfer.half == model::AllReduceHalf::kReduceScatter)
    return link::WorkRequest::reduce_scatter(data, transfer.count, transfer.dtype, transfer.op);
  if (transfer.half == model::AllReduceHalf::kAllGather)
    return link::WorkRequest::all_gather(data, shares_of(transfer, nodes));
  if (transfer.collective == ipc::Collective::kBroadcast)
    return link::WorkRequest::broadcast(data, bytes_of(transfer), transfer.root_node);
  if (transfer.collective == ipc::Collective::kAllGather)
    return link::WorkRequest::all_gather(data, transfer.node_bytes);
  return link::WorkRequest::all_reduce(data, transfer.count, transfer.dtype, transfer.op);
}

}  // namespace

// The pipeline of each collective. An all-reduce sums the workers first, so one message a node crosses the network.
std::span<const Channel::Stage> Channel::stages_of(const Transfer& transfer) {
  using enum trace::TransferStage;
  static constexpr Stage kKeep{&Channel::keep_for_replay}, kSubmit{&Channel::submit, kLink},
      kCopyToWorkers{&Channel::copy_to_workers, kCopy};
  static constexpr std::array<Stage, 6> kAllReduce = {{{&Channel::sum_workers, kSum},
                                                       {&Channel::encode, kEncode},
                                                       kKeep,
                                                       kSubmit,
                                                       {&Channel::decode, kDecode},
                                                       kCopyToWorkers}};
  static constexpr std::array<Stage, 4> kAllGather = {
      {{&Channel::gather_workers, kSum}, kKeep, kSubmit, kCopyToWorkers}};
  static constexpr std::array<Stage, 4> kBroadcast = {{{&Channel::choose_source}, kKeep, kSubmit, kCopyToWorkers}};
  static constexpr std::array<Stage, 3> kFirstHalf = {{{&Channel::sum_workers, kSum}, kKeep, kSubmit}};
  static constexpr std::array<Stage, 4> kSecondHalf = {{{&Channel::choose_source}, kKeep, kSubmit, kCopyToWorkers}};
  if (transfer.half == model::AllReduceHalf::kReduceScatter) return kFirstHalf;
  if (transfer.half == model::AllReduceHalf::kAllGather) return kSecondHalf;
  switch (transfer.collective) {
    case ipc::Collective::kAllReduce: return kAllReduce;
    case ipc::Collective::kAllGather: return kAllGather;
    case ipc::Collective::kBroadcast: return kBroadcast;
    case ipc::Collective::kBarrier: break;
  }
  return {};
}

Channel::Channel(std::string name, std::uint32_t node, Report report)
    : name_(std::move(name)), node_(node), report_(std::move(report)) {}

void Channel::start(Transfer transfer) {
  InFlight& entry = in_flight_.emplace_back();
  entry.transfer = std::move(transfer);
  entry.began_us = MonotonicClock::now();
  entry.done.token = entry.transfer.token;
  entry.done.bytes = entry.transfer.collective == ipc::Collective::kBarrier ? 0 : bytes_of(entry.transfer);
  entry.done.wire_bytes = entry.done.bytes;
  if (entry.transfer.half != model::AllReduceHalf::kBoth) entry.done.wire_bytes = entry.done.bytes / 2;
  if (entry.transfer.buffers.empty() && entry.transfer.replay_buffer) use_own_memory(entry);
  advance(std::prev(in_flight_.end()));
}

void Channel::poll() {
  const auto polled = link_->poll();
  if (!polled) return fail_all(polled.error());
  if (!*polled) return;
  const link::Completion& completion = **polled;
  const auto at = std::ranges::find_if(in_flight_, [&](const InFlight& entry) {
    return completion.id >= entry.first_request && completion.id < entry.first_request + entry.requests;
  });
  InFlight& entry = *at;
  // A transfer of several requests took the time of all that did not overtake others.
  if (!std::exchange(entry.has_time, true))
    entry.done.link_us = completion.link_us;
  else if (completion.link_us)
    entry.done.link_us = entry.done.link_us.value_or(0) + *completion.link_us;
  entry.done.overlapped |= completion.overlapped;
  if (++entry.completed < entry.requests) return;
  entry.done.spans.back().end_us = MonotonicClock::now();
  if (entry.coded && entry.coded->has_second_requests()) --entry.stage;  // the link's once more
  advance(at);
}

// Runs the stages up to the link's, or those behind it.
void Channel::advance(const std::list<InFlight>::iterator& at) {
  const auto stages = stages_of(at->transfer);
  while (at->stage < stages.size()) {
    const Stage& stage = stages[at->stage++];
    const bool on_link = stage.name == trace::TransferStage::kLink && link_ != nullptr;
    const TimeUs began_us = MonotonicClock::now();
    at->done.result = (this->*stage.run)(*at);
    // The link's span ends with the last completion.
    const bool goes_on = on_link && at->has_time;
    if (stage.name != trace::TransferStage{} && !goes_on)
      at->done.spans.push_back({stage.name, began_us, MonotonicClock::now()});
    // A link that refuses a request goes on, unless it has one of this transfer already.
    const bool is_refused =
        !at->done.result && at->done.result.error().kind == ErrorKind::kInvalid && at->requests == 0 && !goes_on;
    if (on_link && !at->done.result && !is_refused) {
      const Error error(at->done.result.error());
      link_->abort(error.message());
      return fail_all(error);
    }
    if (!at->done.result) break;
    if (on_link) return;
  }
  report(at);
}

// The times of transfers add up: each counts from the end of the previous one, or from the start of the oldest in flight.
void Channel::report(const std::list<InFlight>::iterator& at) {
  TransferDone done = std::move(at->done);
  if (!done.result) done.result = tl::unexpected(done.result.error().in("link " + name_));
  if (done.link_us) {
    const TimeUs now_us = MonotonicClock::now();
    done.busy_us = now_us - std::max(in_flight_.front().began_us, free_us_);
    free_us_ = now_us;
  }
  in_flight_.erase(at);
  if (done.result) {
    traffic_.measure(done);
    done.cpu = cpu_.measure(MonotonicClock::now());
  }
  report_(std::move(done));
}

void Channel::fail_all(const Error& error) {
  while (!in_flight_.empty()) {
    in_flight_.front().done.result = tl::unexpected(error);
    report(in_flight_.begin());
  }
}

// This node's part of the data. In an all-gather the blocks of the nodes before this one come first.
std::span<std::byte> Channel::brought(const InFlight& entry) const {
  const Transfer& transfer = entry.transfer;
  if (transfer.half == model::AllReduceHalf::kAllGather) {
    const auto shares = shares_of(transfer, link_->nodes());
    return {entry.data + sum_of(std::span(shares).first(node_)), shares[node_]};
  }
  switch (transfer.collective) {
    case ipc::Collective::kAllGather: {
      const std::span<const std::size_t> sizes(transfer.node_bytes);
      return {entry.data + sum_of(sizes.first(node_)), sizes[node_]};
    }
    case ipc::Collective::kBroadcast: return {entry.data, transfer.root_node == node_ ? entry.done.bytes : 0};
    default: return {entry.data, entry.done.bytes};
  }
}

// A replay for the other nodes' sake: this node's workers have the result already, and use their buffers for other things.
void Channel::use_own_memory(InFlight& entry) const {
  entry.own = std::make_unique_for_overwrite<std::byte[]>(entry.done.bytes);
  entry.transfer.buffers = {entry.own.get()};
  entry.transfer.root_local = 0;
}

Result<void> Channel::sum_workers(InFlight& entry) {
  const Transfer& transfer = entry.transfer;
  entry.data = transfer.buffers.front();
  const bool replays = transfer.replay_buffer && transfer.replay_buffer->filled;
  if (!replays && transfer.buffers.size() > 1)
    reduce::reduce(entry.data, {transfer.buffers.data(), transfer.buffers.size()}, transfer.count, transfer.dtype,
                   transfer.op);
  return {};
}

// Every worker's buffer has room for all blocks, in the order of nodes and, within a node, of ranks.
Result<void> Channel::gather_workers(InFlight& entry) {
  const Transfer& transfer = entry.transfer;
  entry.data = transfer.buffers.front();
  std::size_t at = static_cast<std::size_t>(brought(entry).data() - entry.data);
  for (std::size_t i = 0; i < transfer.buffers.size(); ++i) {
    if (i > 0) std::memcpy(entry.data + at, transfer.buffers[i] + at, transfer.local_bytes[i]);
    at += transfer.local_bytes[i];
  }
  return {};
}

Result<void> Channel::choose_source(InFlight& entry) {
  const Transfer& transfer = entry.transfer;
  entry.data = transfer.buffers[transfer.root_node == node_ ? transfer.root_local : 0];
  return {};
}

Result<void> Channel::encode(InFlight& entry) {
  const Transfer& transfer = entry.transfer;
  if (link_ == nullptr || !transfer.codings) return {};
  CodecLoss* const loss = is_measured(encoded_++) ? &entry.done.codec_loss : nullptr;
  entry.coded = std::make_unique<CodedTransfer>(transfer.codings, std::span(entry.data, entry.done.bytes),
                                                NodeOfAll{node_, link_->nodes()}, buffers_, loss);
  const bool is_replay = transfer.replay_buffer && transfer.replay_buffer->filled;
  auto encoded = is_replay ? Result<void>{} : entry.coded->encode(transfer.replay_buffer.get());
  entry.done.wire_bytes = entry.coded->wire_bytes();
  return encoded;
}

// Copies what this node brings before the link destroys it. A filled buffer replaces it.
Result<void> Channel::keep_for_replay(InFlight& entry) {
  if (link_ == nullptr) return {};
  if (!entry.transfer.replay_buffer) {
    if (entry.coded) entry.coded->keep_own();
    return {};
  }
  ReplayBuffer& kept = *entry.transfer.replay_buffer;
  if (entry.coded) {
    if (kept.filled) return entry.coded->restore(kept);
    entry.coded->keep(kept);
    return {};
  }
  const std::span<std::byte> own = brought(entry);
  if (kept.filled) {
    if (kept.bytes > 0) std::memcpy(own.data(), kept.data.get(), kept.bytes);
    return {};
  }
  std::byte* const copy = kept.make_room(own.size());
  streaming_copy(copy, own.data(), own.size());
  kept.filled = true;
  return {};
}

Result<void> Channel::submit(InFlight& entry) {
  if (link_ == nullptr) return {};
  std::vector<link::WorkRequest> requests;
  if (entry.coded)
    requests = entry.has_time ? entry.coded->second_requests() : entry.coded->requests();
  else
    requests.push_back(plain_request(entry.transfer, entry.data, link_->nodes()));
  entry.first_request = requests_ + 1;
  entry.requests = entry.completed = 0;
  if (entry.transfer.tells_segments && !entry.segments)
    entry.done.segments = entry.segments = std::make_shared<link::SegmentLog>(
        entry.first_request, link::SegmentLog::most_for(entry.done.wire_bytes, link_->nodes()));
  for (link::WorkRequest& request : requests) {
    request.id = ++requests_;
    request.priority = entry.transfer.priority;
    request.observer = entry.segments;
    if (auto ok = link_->submit(std::move(request)); !ok) return ok;
    ++entry.requests;
  }
  return {};
}

// What owners left out is booked once. A transfer without buffers of workers is done here already. So is one that the channel has decoded,
// although the link was stopped before anybody heard of it.
Result<void> Channel::decode(InFlight& entry) {
  if (!entry.coded) return {};
  ReplayBuffer* const kept = entry.transfer.replay_buffer.get();
  const bool is_decoded = kept != nullptr && std::exchange(kept->is_decoded, true);
  return entry.coded->decode(entry.own == nullptr && !is_decoded);
}

Result<void> Channel::copy_to_workers(InFlight& entry) {
  for (std::byte* const buffer : entry.transfer.buffers)
    if (buffer != entry.data && entry.done.bytes > 0) std::memcpy(buffer, entry.data, entry.done.bytes);
  return {};
}

}  // namespace deft::daemon
