#include "core/link/link.h"

#include <utility>

#include "core/link/backends.h"
#include "core/model/link_names.h"

namespace deft::link {
namespace {

using Kind = WorkRequest::Kind;

Result<void> check(const WorkRequest& request, std::uint32_t nodes, const std::string& member) {
  if (request.reduces() && (model::dtype_bytes(request.dtype) == 0 || !model::is_known(request.op)))
    return fail(ErrorKind::kInvalid, "all-reduce of an unknown dtype or operation");
  if (request.block == 0 || request.block * model::dtype_bytes(request.dtype) > kMaxBlockBytes)
    return fail(ErrorKind::kInvalid, "a block of " + std::to_string(request.block) + " elements");
  if (const auto& encoded = request.encoded;
      encoded && (request.kind != Kind::kAllReduce || request.dtype != model::DType::kUInt8 ||
                  request.count % request.block != 0 || !encoded->recipe || !request.owner_stage))
    return fail(ErrorKind::kInvalid, "encoded elements that are no blocks, or without an owner's stage");
  if (request.kind == Kind::kReduceByAll && (request.dtype != model::DType::kUInt8 || !request.owner_stage))
    return fail(ErrorKind::kInvalid, "what every node reduces is no bytes, or has no stage that does it");
  if (request.kind == Kind::kBroadcast && request.block_of.root >= nodes)
    return fail(ErrorKind::kInvalid, "broadcast from " + member + " " + std::to_string(request.block_of.root) + " of " +
                                         std::to_string(nodes));
  if (request.kind == Kind::kAllGather && request.block_of.bytes.size() != nodes)
    return fail(ErrorKind::kInvalid, "all-gather of " + std::to_string(request.block_of.bytes.size()) + " blocks on " +
                                         std::to_string(nodes) + " " + member + "s");
  return {};
}

bool adds_encoded(const std::string& link) {
  const Backend* const backend = find_backend(model::backend_of(link));
  return backend != nullptr && backend->adds_encoded;
}

}  // namespace

Link::Link(std::string name, const LinkGroup& group, std::size_t depth, std::size_t second_depth)
    : name_(std::move(name)),
      member_(group.member),
      node_(group.node),
      nodes_(group.nodes),
      queue_(depth),
      overtaking_(second_depth) {}

Result<void> Link::submit(WorkRequest request) {
  if (auto ok = check(request, nodes_, member_); !ok) return ok;
  const bool may_have_stage = request.encoded || request.kind == Kind::kReduceByAll;
  if (request.owner_stage && !composes() && !(may_have_stage && adds_encoded(name_)))
    return fail(ErrorKind::kInvalid, name_ + " reduces natively, without a stage of the owner");
  if (auto ok = check_failure(); !ok) return ok;
  if (nodes_ == 1 || request.bytes() == 0) {
    completed_.push_back({.id = request.id});
    return {};
  }
  WorkQueue& queue = overtakes(request) ? overtaking_ : queue_;
  queue.add(std::move(request));
  return start_what_fits(queue);
}

Result<std::optional<Completion>> Link::poll() {
  if (auto ok = check_failure(); !ok) return tl::unexpected(ok.error());
  if (!completed_.empty()) {
    const Completion done = completed_.front();
    completed_.pop_front();
    return done;
  }
  if (idle() && (nodes_ == 1 || !receives_unasked(name_))) return std::nullopt;
  const auto ended = await();
  if (!ended) return fail_with(ended.error());
  if (!*ended) return std::nullopt;
  const bool overtook = overtaking_.has(**ended);
  WorkQueue& queue = overtook ? overtaking_ : queue_;
  const Completion done = queue.end(**ended, overtook ? &queue_ : nullptr);
  // This one has ended whatever happens to the next one. If that fails, the next call says so.
  static_cast<void>(start_what_fits(queue));
  return done;
}

Result<void> Link::run(WorkRequest request) {
  if (!idle()) return fail(ErrorKind::kInvalid, "a link runs a request alone only while nothing is in flight");
  if (auto ok = submit(std::move(request)); !ok) return ok;
  while (true) {
    const auto done = poll();
    if (!done) return tl::unexpected(done.error());
    if (*done) return {};
  }
}

bool Link::idle() const { return completed_.empty() && queue_.empty() && overtaking_.empty(); }

void Link::interrupt() {
  if (nodes_ > 1) interrupt_await();
}

void Link::abort(std::string_view reason) {
  const Error error{ErrorKind::kLost, std::string(reason), {}, {}};
  failure_.keep(error.in(name_));
  if (nodes_ > 1) stop(error);
}

// An abort may not have come to its end yet, and the caller takes its data back now.
Result<void> Link::check_failure() {
  auto ok = failure_.check();
  if (ok) return ok;
  if (nodes_ > 1) settle();
  queue_.clear();
  overtaking_.clear();
  completed_.clear();
  return ok;
}

// The first cause counts.
tl::unexpected<Error> Link::fail_with(const Error& error) {
  failure_.keep(error.in(name_));
  return tl::unexpected(check_failure().error());
}

Result<void> Link::start_what_fits(WorkQueue& queue) {
  while (queue.can_start()) {
    const WorkRequest request = queue.start(&queue == &queue_ ? nullptr : &queue_);
    if (auto ok = start(request); !ok) return fail_with(ok.error());
  }
  return {};
}

}  // namespace deft::link
