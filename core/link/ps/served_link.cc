#include "core/link/ps/served_link.h"

#include <algorithm>

#include "core/model/dtype.h"
#include "core/reduce/reduce.h"

namespace deft::link::ps_backend {
namespace {

std::string name_of(std::uint32_t node) { return "node " + std::to_string(node); }

std::string describe(const PsHeader& header, std::span<const std::byte> recipe) {
  std::string text = std::to_string(header.bytes) + " bytes of " + std::to_string(header.total);
  if (!recipe.empty()) {
    text += ", encoded by " + compress::SumRecipe::describe(recipe);
    return header.keeper == kNoOwner ? text : text + ", whose rest " + name_of(header.keeper) + " keeps";
  }
  if (header.keeper == kEveryNode) return text + " for all to add";
  if (header.owner != kNoOwner) return text + " from " + name_of(header.owner);
  const auto dtype = static_cast<model::DType>(header.dtype);
  return text + " of " + std::string(model::to_string(dtype)) + " (operation " + std::to_string(header.op) + ")";
}

bool is_rounded_once(model::DType dtype) { return dtype == model::DType::kFloat16 || dtype == model::DType::kBFloat16; }

Result<EncodedSum> read_sum(std::span<const std::byte> recipe, const PsHeader& header) {
  auto sum = EncodedSum::read(recipe, header.bytes);
  if (!sum) return sum;
  const std::string codec(sum->codec().traits().name);
  if (sum->values() * sizeof(float) > kMaxAnswerBytes)
    return fail(ErrorKind::kViolation, "too many values of " + codec + " at once");
  if (header.keeper != kNoOwner && !sum->codec().traits().uses_feedback)
    return fail(ErrorKind::kViolation, "a node is to keep what " + codec + " leaves out, and nobody does");
  return sum;
}

// The codes of the other nodes, in their order.
zmq::message_t codes_for(std::uint32_t node, std::vector<zmq::message_t>& parts) {
  zmq::message_t others;
  if (parts.size() == 2) {
    others.copy(parts[1 - node]);  // shares the bytes
    return others;
  }
  others.rebuild((parts.size() - 1) * parts.front().size());
  auto* at = others.data<std::byte>();
  for (std::uint32_t n = 0; n < parts.size(); ++n)
    if (n != node) at = std::copy_n(parts[n].data<std::byte>(), parts[n].size(), at);
  return others;
}

struct EncodedAnswers {
  zmq::message_t result, for_keeper;  // the second one is empty if nobody keeps anything
  Result<void> ok;
  std::size_t garbage = 0;  // the node whose codes are
};

// From the codes of all nodes.
EncodedAnswers make_answers(const EncodedSum& sum, std::vector<zmq::message_t>& parts, std::uint32_t keeper) {
  EncodedAnswers made;
  std::vector<std::span<const std::byte>> codes;
  for (const zmq::message_t& part : parts) codes.emplace_back(part.data<std::byte>(), part.size());
  const std::size_t bytes = codes.front().size();
  made.result.rebuild(bytes);
  const std::span result(made.result.data<std::byte>(), bytes);
  const auto nodes = static_cast<std::uint32_t>(parts.size());
  if (keeper == kNoOwner || !gets_sum(nodes, bytes, sum.values())) {
    made.ok = sum.combine(codes, result, made.garbage);
    if (keeper != kNoOwner && made.ok) made.for_keeper = codes_for(keeper, parts);
    return made;
  }
  std::vector<float> values(sum.values());
  made.ok = sum.add(codes, values, made.garbage);
  if (made.ok) made.ok = sum.encode(values, result);
  made.for_keeper = zmq::message_t(values.data(), values.size() * sizeof(float));
  return made;
}

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
  report_presence();
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

void ServedLink::report_presence() {
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
  if (!started_) return report_presence();
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
  if (payload != (brings ? header.bytes : 0)) return std::to_string(payload) + " bytes for " + describe(header, {});
  if (header.owner != kNoOwner && header.owner >= nodes_) return "for a node that does not exist";
  if (header.keeper == kEveryNode) {
    if (header.owner != kNoOwner || header.recipe_bytes > 0 || (nodes_ - 1) * header.bytes > kMaxAnswerBytes)
      return "for all to add, and that cannot be";
  } else if (header.keeper != kNoOwner && (header.keeper >= nodes_ || header.recipe_bytes == 0)) {
    return "for a node to keep, and that cannot be";
  }
  const std::size_t element = model::dtype_bytes(static_cast<model::DType>(header.dtype));
  if (header.recipe_bytes > 0 && (header.owner != kNoOwner || element != 1))
    return "codes that are no bytes of all nodes";
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

bool ServedLink::is_alike(const Slot& slot, const PsHeader& header, Recipe recipe) {
  const PsHeader& shape = slot.shape;
  return shape.bytes == header.bytes && shape.total == header.total && shape.owner == header.owner &&
         shape.dtype == header.dtype && shape.op == header.op && shape.keeper == header.keeper &&
         std::ranges::equal(slot.recipe, recipe);
}

// Null: the link has failed.
ServedLink::Slot* ServedLink::slot_for(std::uint32_t node, const PsHeader& header, Recipe recipe) {
  const auto [it, added] = slots_.try_emplace({header.round, header.segment});
  Slot& slot = it->second;
  if (!added) {
    if (is_alike(slot, header, recipe)) return &slot;
    fail_all({ErrorKind::kMismatch,
              name_of(slot.first_node) + " pushed " + describe(slot.shape, slot.recipe) + " where " + name_of(node) +
                  " pushed " + describe(header, recipe),
              "all nodes must run the same operations in the same order",
              {}});
    return nullptr;
  }
  slot.shape = header;
  slot.first_node = node;
  slot.parts.resize(nodes_);
  slot.came.resize(nodes_);
  slot.missing = nodes_;
  if (recipe.empty()) return &slot;
  slot.recipe.assign(recipe.begin(), recipe.end());
  auto sum = read_sum(recipe, header);
  if (!sum) {
    refuse(node, "codes: " + sum.error().message());
    return nullptr;
  }
  slot.sum = *std::move(sum);
  return &slot;
}

void ServedLink::taken(std::uint32_t node, std::uint64_t count) {
  if (failed_) return;
  if (members_[node].outbox.taken(count)) return answer(node);
  fail_all({ErrorKind::kViolation,
            name_of(node) + " took results that the parameter server did not give",
            "install the same version of Deft on all nodes",
            {}});
}

void ServedLink::refuse(std::uint32_t node, const std::string& wrong) {
  fail_all({ErrorKind::kViolation,
            name_of(node) + " pushed " + wrong + " to the parameter server",
            "install the same version of Deft on all nodes",
            {}});
}

void ServedLink::push(std::uint32_t node, const PsHeader& header, zmq::message_t payload, Recipe recipe) {
  taken(node, header.taken);
  if (failed_) return;
  const std::string wrong = fault(node, header, payload.size());
  if (!wrong.empty()) return refuse(node, wrong);
  const Key key{header.round, header.segment};
  note(members_[node], key);
  Slot* const slot = slot_for(node, header, recipe);
  if (slot == nullptr) return;
  bytes_ += payload.size();
  slot->parts[node] = std::move(payload);
  slot->came[node] = true;
  --slot->missing;
  if (header.owner == kNoOwner && header.keeper != kEveryNode && !slot->sum) sum_what_is_here(*slot);
  if (slot->missing > 0) return;
  slot->sum ? complete_encoded(*slot) : complete(*slot);
  slots_.erase(key);
}

// Segments of older rounds than these are not taken any more.
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
  const std::uint32_t owner = slot.shape.owner;
  zmq::message_t& result = slot.parts[owner == kNoOwner ? 0 : owner];
  for (std::uint32_t n = 0; n < nodes_; ++n) {
    zmq::message_t payload;
    if (slot.shape.keeper == kEveryNode)
      payload = codes_for(n, slot.parts);
    else if (n != owner)
      payload.copy(result);  // shares the bytes
    add_result(n, slot, std::move(payload));
  }
}

void ServedLink::add_result(std::uint32_t node, const Slot& slot, zmq::message_t payload) {
  PsHeader header = slot.shape;
  header.kind = Kind::kResult;
  header.recipe_bytes = 0;
  members_[node].outbox.add(header, std::move(payload));
  answer(node);
}

// What leaves for the keeper is made before the others are answered: their result may be garbage.
void ServedLink::complete_encoded(Slot& slot) {
  auto made = make_answers(*slot.sum, slot.parts, slot.shape.keeper);
  if (!made.ok) {
    return fail_all({ErrorKind::kViolation,
                     name_of(made.garbage) + " pushed what " + std::string(slot.sum->codec().traits().name) +
                         " cannot decode: " + made.ok.error().message(),
                     "see the log of that node, and check its memory and network",
                     {}});
  }
  for (std::uint32_t n = 0; n < nodes_; ++n) {
    zmq::message_t payload;
    payload.copy(n == slot.shape.keeper ? made.for_keeper : made.result);  // shares the bytes
    add_result(n, slot, std::move(payload));
  }
}

void ServedLink::answer(std::uint32_t node) {
  while (auto result = members_[node].outbox.next()) send_(node, result->header, result->payload);
}

}  // namespace deft::link::ps_backend
