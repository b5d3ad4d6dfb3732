#include "core/link/ps/served_link.h"

#include "core/model/dtype.h"
#include "core/reduce/reduce.h"

namespace deft::link::ps_backend {
namespace {

std::string name_of(std::uint32_t node) { return "node " + std::to_string(node); }

std::string describe(const PsHeader& header) {
  std::string text = std::to_string(header.bytes) + " bytes of " + std::to_string(header.total);
  if (header.owner != kNoOwner) return text + " from " + name_of(header.owner);
  const auto dtype = static_cast<model::DType>(header.dtype);
  return text + " of " + std::string(model::to_string(dtype)) + " (operation " + std::to_string(header.op) + ")";
}

bool is_rounded_once(model::DType dtype) { return dtype == model::DType::kFloat16 || dtype == model::DType::kBFloat16; }

}  // namespace

PsHeader failed_header(const Error& error) {
  PsHeader header;
  header.kind = Kind::kFailed;
  header.error = static_cast<std::uint8_t>(error.kind);
  return header;
}

ServedLink::ServedLink(std::uint32_t nodes, Send send) : nodes_(nodes), send_(std::move(send)) {}

Result<void> ServedLink::join(std::uint32_t node, std::uint32_t nodes) {
  if (nodes != nodes_) {
    return fail(ErrorKind::kMismatch,
                name_of(node) + " is one of " + std::to_string(nodes) + ", the others of " + std::to_string(nodes_));
  }
  if (is_here(node)) return fail(ErrorKind::kMismatch, "two links are " + name_of(node));
  if (failed_) return tl::unexpected(*failed_);
  if (started_) return fail(ErrorKind::kMismatch, name_of(node) + " has left before");
  members_[node] = {};
  members_[node].here = true;
  ++present_;
  tell_present();
  if (present_ < nodes_) return {};
  started_ = true;
  PsHeader header;
  header.kind = Kind::kWelcome;
  for (std::uint32_t n = 0; n < nodes_; ++n) {
    zmq::message_t nothing;
    send_(n, header, nothing);
  }
  return {};
}

bool ServedLink::is_here(std::uint32_t node) const {
  const auto member = members_.find(node);
  return member != members_.end() && member->second.here;
}

void ServedLink::tell_present() {
  PsHeader header;
  header.kind = Kind::kPresent;
  zmq::message_t present(nodes_);
  for (std::uint32_t n = 0; n < nodes_; ++n) present.data<std::uint8_t>()[n] = is_here(n) ? 1 : 0;
  for (const auto& [node, member] : members_) {
    if (!member.here) continue;
    zmq::message_t payload;
    payload.copy(present);  // shares the bytes
    send_(node, header, payload);
  }
}

void ServedLink::leave(std::uint32_t node) {
  if (!is_here(node)) return;
  members_[node].here = false;
  --present_;
  if (!started_) return tell_present();
  fail_all({ErrorKind::kLost, name_of(node) + " has closed its link or died", "see the log of " + name_of(node), {}});
}

void ServedLink::fail_all(const Error& error) {
  if (failed_) return;
  failed_ = error;
  slots_.clear();
  const std::string text = error.message();
  for (auto& [node, member] : members_) {
    if (!member.here) continue;
    while (auto finished = member.outbox.next_of_all()) send_(node, finished->header, finished->payload);
    zmq::message_t payload(text.data(), text.size());
    send_(node, failed_header(error), payload);
  }
}

// Why a push cannot be taken; empty if it can.
std::string ServedLink::fault(std::uint32_t node, const PsHeader& header, std::size_t payload) const {
  const bool brings = header.owner == kNoOwner || header.owner == node;
  if (!started_) return "before all links were here";
  if (header.bytes == 0 || header.bytes > kMaxSegmentBytes) return std::to_string(header.bytes) + " bytes at once";
  if (payload != (brings ? header.bytes : 0)) return std::to_string(payload) + " bytes for " + describe(header);
  if (header.owner != kNoOwner && header.owner >= nodes_) return "for a node that does not exist";
  const std::size_t element = model::dtype_bytes(static_cast<model::DType>(header.dtype));
  if (header.owner == kNoOwner &&
      (element == 0 || header.bytes % element != 0 || !model::is_known(static_cast<model::ReduceOp>(header.op))))
    return "of an unknown type or operation";
  if (members_.at(node).outbox.waiting() > 4 * kWindow) return "more, and takes no results";
  const Key key{header.round, header.segment};
  const auto& last = members_.at(node).last;
  const auto before = last.find(header.round);
  if (before != last.end() && header.segment <= before->second) return "a second time";
  const std::uint64_t newest = last.empty() ? 0 : last.rbegin()->first;
  if (newest > header.round && newest - header.round >= kRoundsApart) return "of a round long past";
  if (slots_.size() >= 8 * kWindow && slots_.count(key) == 0) return "too far ahead of the others";
  return {};
}

bool ServedLink::same_shape(const PsHeader& a, const PsHeader& b) {
  return a.bytes == b.bytes && a.total == b.total && a.owner == b.owner && a.dtype == b.dtype && a.op == b.op;
}

ServedLink::Slot& ServedLink::slot_for(std::uint32_t node, const PsHeader& header) {
  const auto [it, added] = slots_.try_emplace({header.round, header.segment});
  Slot& slot = it->second;
  if (added) {
    slot.shape = header;
    slot.first_node = node;
    slot.parts.resize(nodes_);
    slot.came.resize(nodes_);
    slot.missing = nodes_;
  }
  return slot;
}

void ServedLink::taken(std::uint32_t node, std::uint64_t count) {
  if (failed_) return;
  if (members_[node].outbox.taken(count)) return answer(node);
  fail_all({ErrorKind::kViolation,
            name_of(node) + " took results that the parameter server did not give",
            "install the same version of Deft on all nodes",
            {}});
}

void ServedLink::push(std::uint32_t node, const PsHeader& header, zmq::message_t payload) {
  taken(node, header.taken);
  if (failed_) return;
  const std::string wrong = fault(node, header, payload.size());
  if (!wrong.empty()) {
    return fail_all({ErrorKind::kViolation,
                     name_of(node) + " pushed " + wrong + " to the parameter server",
                     "install the same version of Deft on all nodes",
                     {}});
  }
  const Key key{header.round, header.segment};
  note(members_[node], key);
  Slot& slot = slot_for(node, header);
  if (!same_shape(slot.shape, header)) {
    return fail_all({ErrorKind::kMismatch,
                     name_of(slot.first_node) + " pushed " + describe(slot.shape) + " where " + name_of(node) +
                         " pushed " + describe(header),
                     "all nodes must run the same operations in the same order",
                     {}});
  }
  bytes_ += payload.size();
  slot.parts[node] = std::move(payload);
  slot.came[node] = true;
  --slot.missing;
  if (header.owner == kNoOwner) sum_what_is_here(slot);
  if (slot.missing > 0) return;
  complete(slot);
  slots_.erase(key);
}

// Of older rounds than these nothing more is taken.
void ServedLink::note(Member& member, const Key& key) {
  member.last[key.first] = key.second;
  while (member.last.rbegin()->first - member.last.begin()->first >= kRoundsApart)
    member.last.erase(member.last.begin());
}

void ServedLink::sum_what_is_here(Slot& slot) {
  const auto dtype = static_cast<model::DType>(slot.shape.dtype);
  const auto op = static_cast<model::ReduceOp>(slot.shape.op);
  const std::size_t count = slot.shape.bytes / model::dtype_bytes(dtype);
  if (is_rounded_once(dtype) && slot.missing > 0) return;
  std::vector<const std::byte*> inputs;
  const std::uint32_t first = slot.summed;
  while (slot.summed < slot.came.size() && slot.came[slot.summed]) ++slot.summed;
  if (slot.summed == first || slot.summed < 2) return;
  inputs.push_back(slot.parts[0].data<std::byte>());
  for (std::uint32_t n = std::max(first, 1U); n < slot.summed; ++n) inputs.push_back(slot.parts[n].data<std::byte>());
  reduce::reduce(slot.parts[0].data<std::byte>(), inputs, count, dtype, op);
  for (std::uint32_t n = std::max(first, 1U); n < slot.summed; ++n) slot.parts[n].rebuild();
}

void ServedLink::complete(Slot& slot) {
  PsHeader header = slot.shape;
  header.kind = Kind::kResult;
  zmq::message_t& result = slot.parts[header.owner == kNoOwner ? 0 : header.owner];
  for (std::uint32_t n = 0; n < nodes_; ++n) {
    zmq::message_t payload;
    if (n != header.owner) payload.copy(result);  // shares the bytes
    members_[n].outbox.add(header, std::move(payload));
    answer(n);
  }
}

void ServedLink::answer(std::uint32_t node) {
  while (auto result = members_[node].outbox.next()) send_(node, result->header, result->payload);
}

}  // namespace deft::link::ps_backend
