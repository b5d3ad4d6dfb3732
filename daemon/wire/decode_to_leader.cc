// Checks the messages of a node to its leader.
#include <algorithm>
#include <limits>

#include "daemon/wire/decoding.h"

namespace deft::daemon::wire {
namespace {

constexpr double kLongestStepUs = 1e15;
constexpr std::uint64_t kMostEncodedBytes = std::uint64_t{1} << 60;
constexpr std::size_t kMaxSlots = 8;  // as model::lay_out has it

class LeaderMessageReader {
 public:
  explicit LeaderMessageReader(const LeaderFacts& facts) : facts_(facts) {}

  Result<ToLeader> join(const proto::Join& from);
  Result<ToLeader> declare(const proto::Declare& from);
  Result<ToLeader> collective_ready(const proto::CollectiveReady& from);
  Result<ToLeader> statistics(const proto::GradientStatistics& from);
  Result<ToLeader> store_set(const proto::StoreSet& from);
  Result<ToLeader> store_get(const proto::StoreGet& from);
  Result<ToLeader> link_failed(const proto::LinkFailed& from);
  Result<ToLeader> link_stopped(const proto::LinkStopped& from);
  Result<ToLeader> progress(const proto::NodeProgress& from);
  Result<ToLeader> failure(const proto::Failure& from);
  Result<ToLeader> leave(const proto::Leave& from);
  Result<ToLeader> stalled(const proto::Stalled& from);
  Result<ToLeader> waiting(const proto::Waiting& from);
  Result<ToLeader> release(const proto::Release& from);

 private:
  model::TensorSpec tensor(const proto::Tensor& from, const Field& at);
  CollectiveSpec spec(const proto::CollectiveSpec& from, std::size_t local_rank, const Field& at);
  std::uint32_t link(std::uint32_t value, const Field& at) {
    return checks_.below(value, facts_.link_epochs.size(), at, "links");
  }
  // A link's epoch may be older than the leader's: the message crossed the news of its replacement.
  std::uint32_t epoch(std::uint32_t value, std::uint32_t link, const Field& at) {
    return link < facts_.link_epochs.size() ? checks_.at_most(value, facts_.link_epochs[link], at) : value;
  }
  std::size_t buckets(std::uint32_t group, const Field& at);
  void own_rank(std::uint32_t rank, const Field& at);

  const LeaderFacts& facts_;
  Checks checks_;
};

Result<ToLeader> LeaderMessageReader::join(const proto::Join& from) {
  const Field at{nullptr, "join"};
  Join to;
  to.host = checks_.name(from.host(), {&at, "host"}, kMaxNameBytes);
  to.deft_version = checks_.name(from.deft_version(), {&at, "deft_version"}, kMaxNameBytes);
  to.world = checks_.at_most(from.world(), ipc::kMaxWorld, {&at, "world"});
  to.user = from.user();
  to.token = checks_.text(from.token(), {&at, "token"}, kMaxLongNameBytes);
  to.ranks = read_ranks(from.ranks(), to.world, {&at, "ranks"}, checks_);
  checks_.size(static_cast<std::size_t>(from.settings_size()), 0, kMaxSettings, {&at, "settings"});
  for (int i = 0; i < from.settings_size() && !checks_.failed(); ++i) {
    const Field item{&at, "settings", i};
    auto name = checks_.name(from.settings(i).name(), {&item, "name"}, kMaxNameBytes);
    auto value = checks_.text(from.settings(i).value(), {&item, "value"}, kMaxTextBytes);
    const bool added = to.settings.emplace(std::move(name), std::move(value)).second;
    checks_.require(added, {&item, "name"}, "it comes twice");
  }
  to.links = read_links(from.links(), {&at, "links"}, checks_);
  if (from.has_refusal()) to.refusal = read_error(from.refusal(), {&at, "refusal"}, checks_);
  return checked<ToLeader>(std::move(to), checks_);
}

model::TensorSpec LeaderMessageReader::tensor(const proto::Tensor& from, const Field& at) {
  model::TensorSpec to;
  to.name = checks_.name(from.name(), {&at, "name"}, kMaxLongNameBytes);
  to.dtype = read_enum(from.dtype(), model::DType::kFloat32, model::DType::kInt8, {&at, "dtype"}, checks_);
  checks_.size(static_cast<std::size_t>(from.shape_size()), 0, model::kMaxDims, {&at, "shape"});
  to.forward_position = from.forward_position();
  to.codec = checks_.text(from.codec(), {&at, "codec"}, model::kMaxCodecTextBytes);
  if (checks_.failed()) return to;
  to.shape.assign(from.shape().begin(), from.shape().end());
  std::uint64_t bytes = model::dtype_bytes(to.dtype);
  bool fits = true;
  for (const auto extent : to.shape) fits = !__builtin_mul_overflow(bytes, extent, &bytes) && fits;
  checks_.require(fits && bytes <= model::kMaxArenaBytes, {&at, "shape"}, "the tensor has more than 4 TiB");
  return to;
}

Result<ToLeader> LeaderMessageReader::declare(const proto::Declare& from) {
  const Field at{nullptr, "declare"};
  Declare to;
  to.group = checks_.below(from.group(), kMaxGroupNumbers, {&at, "group"}, "numbers of groups");
  to.name = checks_.text(from.name(), {&at, "name"}, kMaxNameBytes);
  to.slots = checks_.at_most(from.slots(), kMaxSlots, {&at, "slots"});
  checks_.require(to.slots > 0, {&at, "slots"}, "0");
  to.op = read_enum(from.reduce_op(), model::ReduceOp::kSum, model::ReduceOp::kMax, {&at, "reduce_op"}, checks_);
  const std::size_t tensors =
      checks_.size(static_cast<std::size_t>(from.tensors_size()), 1, model::kMaxTensors, {&at, "tensors"});
  if (!checks_.failed()) to.tensors.reserve(tensors);
  for (int i = 0; i < from.tensors_size() && !checks_.failed(); ++i)
    to.tensors.push_back(tensor(from.tensors(i), {&at, "tensors", i}));
  return checked<ToLeader>(std::move(to), checks_);
}

CollectiveSpec LeaderMessageReader::spec(const proto::CollectiveSpec& from, std::size_t local_rank, const Field& at) {
  CollectiveSpec to;
  to.rank = from.rank();
  checks_.require(to.rank == facts_.sender_ranks[local_rank], {&at, "rank"}, [&] {
    return std::to_string(to.rank) + ", and the sender's local rank " + std::to_string(local_rank) + " is rank " +
           std::to_string(facts_.sender_ranks[local_rank]);
  });
  to.collective = read_enum(from.collective(), ipc::Collective::kAllReduce, ipc::Collective::kBarrier,
                            {&at, "collective"}, checks_);
  to.terms = checks_.text(from.terms(), {&at, "terms"}, ipc::kMaxTermsBytes);
  if (to.collective == ipc::Collective::kBarrier) {
    const bool nothing = from.dtype() == 0 && from.reduce_op() == 0 && from.root() == 0 && from.count() == 0;
    checks_.require(nothing && from.capacity() == 0, {&at, "collective"},
                    "a barrier with a dtype, reduce_op, root, count or capacity");
    return to;
  }
  to.dtype = read_enum(from.dtype(), model::DType::kFloat32, model::DType::kInt8, {&at, "dtype"}, checks_);
  to.op = read_enum(from.reduce_op(), model::ReduceOp::kSum, model::ReduceOp::kMax, {&at, "reduce_op"}, checks_);
  to.root = from.root();
  to.count = from.count();
  to.capacity = from.capacity();
  const std::uint64_t most = model::kMaxArenaBytes / model::dtype_bytes(to.dtype);
  checks_.at_most(to.count, most, {&at, "count"});
  checks_.at_most(to.capacity, most, {&at, "capacity"});
  if (to.collective == ipc::Collective::kAllGather)
    checks_.require(to.count <= to.capacity, {&at, "count"}, "more than the capacity");
  else
    checks_.require(to.capacity == 0, {&at, "capacity"}, "this is no all-gather");
  return to;
}

Result<ToLeader> LeaderMessageReader::collective_ready(const proto::CollectiveReady& from) {
  const Field at{nullptr, "collective_ready"};
  CollectiveReady to;
  to.name = checks_.text(from.name(), {&at, "name"}, kMaxLongNameBytes);
  const std::size_t ranks = facts_.sender_ranks.size();
  checks_.size(static_cast<std::size_t>(from.specs_size()), ranks, ranks, {&at, "specs"});
  for (int i = 0; i < from.specs_size() && !checks_.failed(); ++i)
    to.specs.push_back(spec(from.specs(i), static_cast<std::size_t>(i), {&at, "specs", i}));
  return checked<ToLeader>(std::move(to), checks_);
}

std::size_t LeaderMessageReader::buckets(std::uint32_t group, const Field& at) {
  const std::size_t count = facts_.buckets ? facts_.buckets(group) : 0;
  checks_.require(count > 0, at, [&] { return "no group " + std::to_string(group) + " is agreed"; });
  return count;
}

Result<ToLeader> LeaderMessageReader::statistics(const proto::GradientStatistics& from) {
  constexpr double kMost = std::numeric_limits<double>::max();
  const Field at{nullptr, "gradient_statistics"};
  buckets(from.group(), {&at, "group"});
  const auto ranks = static_cast<std::uint32_t>(facts_.sender_ranks.size());
  checks_.require(from.ranks() == ranks, {&at, "ranks"},
                  [&] { return std::to_string(from.ranks()) + ", and the sender has " + std::to_string(ranks); });
  GradientStatistics to{.group = from.group(), .step = from.step(), .ranks = from.ranks()};
  to.local_norms = checks_.finite(from.local_norms(), {&at, "local_norms"}, 0, kMost);
  to.average_norms = checks_.finite(from.average_norms(), {&at, "average_norms"}, 0, kMost);
  to.loss = from.loss();  // of a training that fails: any number, or none
  to.learning_rate = checks_.finite(from.learning_rate(), {&at, "learning_rate"}, 0, kMost);
  to.target = checks_.finite(from.target(), {&at, "target"}, -kMost, kMost);
  to.merged_as_sums = from.merged_as_sums();
  return checked<ToLeader>(to, checks_);
}

Result<ToLeader> LeaderMessageReader::store_set(const proto::StoreSet& from) {
  const Field at{nullptr, "store_set"};
  StoreSet to;
  to.key = checks_.name(from.key(), {&at, "key"}, kMaxStoreKeyBytes);
  checks_.at_most(from.value().size(), kMaxStoreValueBytes, {&at, "value"});
  if (!checks_.failed()) to.value = bytes_of(from.value());
  return checked<ToLeader>(std::move(to), checks_);
}

Result<ToLeader> LeaderMessageReader::store_get(const proto::StoreGet& from) {
  const Field at{nullptr, "store_get"};
  StoreGet to{.request = from.request(), .keys = {}};
  checks_.size(static_cast<std::size_t>(from.keys_size()), 1, kMaxStoreKeys, {&at, "keys"});
  for (int i = 0; i < from.keys_size() && !checks_.failed(); ++i)
    to.keys.push_back(checks_.name(from.keys(i), {&at, "keys", i}, kMaxStoreKeyBytes));
  return checked<ToLeader>(std::move(to), checks_);
}

Result<ToLeader> LeaderMessageReader::link_failed(const proto::LinkFailed& from) {
  const Field at{nullptr, "link_failed"};
  LinkFailed to;
  to.link = link(from.link(), {&at, "link"});
  to.epoch = epoch(from.epoch(), to.link, {&at, "epoch"});
  to.cause = read_error(from.cause(), {&at, "cause"}, checks_);
  return checked<ToLeader>(std::move(to), checks_);
}

Result<ToLeader> LeaderMessageReader::link_stopped(const proto::LinkStopped& from) {
  const Field at{nullptr, "link_stopped"};
  LinkStopped to;
  to.link = link(from.link(), {&at, "link"});
  to.epoch = epoch(from.epoch(), to.link, {&at, "epoch"});
  to.finished_below = checks_.at_most(from.finished_below(), facts_.next_number, {&at, "finished_below"});
  return checked<ToLeader>(to, checks_);
}

Result<ToLeader> LeaderMessageReader::progress(const proto::NodeProgress& from) {
  const Field at{nullptr, "node_progress"};
  NodeProgress to;
  const std::size_t links = facts_.link_epochs.size();
  checks_.size(static_cast<std::size_t>(from.links_size()), links, links, {&at, "links"});
  for (int i = 0; i < from.links_size() && !checks_.failed(); ++i) {
    const Field item{&at, "links", i};
    const auto& told = from.links(i);
    to.links.push_back({epoch(told.epoch(), static_cast<std::uint32_t>(i), {&item, "epoch"}), told.finished_below(),
                        checks_.at_most(told.started_below(), facts_.next_number, {&item, "started_below"})});
    checks_.require(told.finished_below() <= told.started_below(), {&item, "finished_below"},
                    "beyond what has been started");
  }
  return checked<ToLeader>(std::move(to), checks_);
}

Result<ToLeader> LeaderMessageReader::failure(const proto::Failure& from) {
  const Field at{nullptr, "failure"};
  return checked<ToLeader>(Failure{read_error(from, at, checks_), from.suspected()}, checks_);
}

void LeaderMessageReader::own_rank(std::uint32_t rank, const Field& at) {
  for (const auto own : facts_.sender_ranks)
    if (own == rank) return;
  checks_.fail(at, "rank " + std::to_string(rank) + " is not on the sender's node");
}

Result<ToLeader> LeaderMessageReader::leave(const proto::Leave& from) {
  const Field at{nullptr, "leave"};
  Leave to{read_ranks(from.ranks(), facts_.world, {&at, "ranks"}, checks_)};
  for (std::size_t i = 0; i < to.ranks.size(); ++i) own_rank(to.ranks[i], {&at, "ranks", static_cast<std::int64_t>(i)});
  return checked<ToLeader>(std::move(to), checks_);
}

Result<ToLeader> LeaderMessageReader::stalled(const proto::Stalled& from) {
  const Field at{nullptr, "stalled"};
  own_rank(from.rank(), {&at, "rank"});
  return checked<ToLeader>(read(from, at, checks_), checks_);
}

Result<ToLeader> LeaderMessageReader::waiting(const proto::Waiting& from) {
  const Field at{nullptr, "waiting"};
  checks_.below(from.bucket(), buckets(from.group(), {&at, "group"}), {&at, "bucket"}, "buckets");
  return checked<ToLeader>(Waiting{from.group(), from.bucket(), from.generation()}, checks_);
}

Result<ToLeader> LeaderMessageReader::release(const proto::Release& from) {
  buckets(from.group(), {nullptr, "release.group"});
  return checked<ToLeader>(Release{from.group()}, checks_);
}

Result<ToLeader> read_step_time(const proto::StepTime& from, const LeaderFacts& facts) {
  Checks checks;
  const Field at{nullptr, "step_time"};
  StepTime to{.us = checks.finite(from.us(), {&at, "us"}, 0, kLongestStepUs)};
  checks.size(static_cast<std::size_t>(from.codecs_size()), 0, facts.codecs - 1, {&at, "codecs"});
  for (int i = 0; i < from.codecs_size() && !checks.failed(); ++i) {
    const Field item{&at, "codecs", i};
    const auto& told = from.codecs(i);
    checks.below(told.codec(), facts.codecs, {&item, "codec"}, "codecs");
    checks.require(told.codec() != 0, {&item, "codec"}, "0, which encodes nothing");
    checks.require(std::ranges::find(to.codecs, told.codec(), &CodecTime::codec) == to.codecs.end(), {&item, "codec"},
                   "it comes twice");
    to.codecs.push_back({static_cast<model::CodecIndex>(told.codec()),
                         checks.at_most(told.bytes(), kMostEncodedBytes, {&item, "bytes"}),
                         checks.finite(told.encode_us(), {&item, "encode_us"}, 0, kLongestStepUs),
                         checks.finite(told.decode_us(), {&item, "decode_us"}, 0, kLongestStepUs)});
  }
  return checked<ToLeader>(std::move(to), checks);
}

}  // namespace

Result<ToLeader> decode(const proto::ToLeader& message, const LeaderFacts& facts) {
  using Kind = proto::ToLeader;
  if (facts.sender_ranks.empty() && !message.has_join())
    return fail(ErrorKind::kViolation, "to_leader: the sender has not joined");
  LeaderMessageReader reader(facts);
  switch (message.message_case()) {
    case Kind::kJoin: return reader.join(message.join());
    case Kind::kLinksOpen: return ToLeader(LinksOpen{});
    case Kind::kDeclare: return reader.declare(message.declare());
    case Kind::kCollectiveReady: return reader.collective_ready(message.collective_ready());
    case Kind::kGradientStatistics: return reader.statistics(message.gradient_statistics());
    case Kind::kStepTime: return read_step_time(message.step_time(), facts);
    case Kind::kStoreSet: return reader.store_set(message.store_set());
    case Kind::kStoreGet: return reader.store_get(message.store_get());
    case Kind::kLinkFailed: return reader.link_failed(message.link_failed());
    case Kind::kLinkStopped: return reader.link_stopped(message.link_stopped());
    case Kind::kNodeProgress: return reader.progress(message.node_progress());
    case Kind::kHeartbeat: return ToLeader(read(message.heartbeat()));
    case Kind::kFailure: return reader.failure(message.failure());
    case Kind::kLeave: return reader.leave(message.leave());
    case Kind::kStalled: return reader.stalled(message.stalled());
    case Kind::kWaiting: return reader.waiting(message.waiting());
    case Kind::kRelease: return reader.release(message.release());
    case Kind::MESSAGE_NOT_SET: break;
  }
  return fail(ErrorKind::kViolation, "to_leader: it holds no message of this version");
}

}  // namespace deft::daemon::wire
