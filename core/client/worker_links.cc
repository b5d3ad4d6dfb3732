#include "core/client/worker_links.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "core/base/signals.h"
#include "core/base/text.h"
#include "core/ipc/wire.h"
#include "core/link/segment_log.h"

namespace deft::client {
namespace {

// `read` takes a START or a START_COLLECTIVE.
template <typename Read>
auto read_start(const shm::Record& start, Read read) {
  return start.kind() == shm::RecordKind::kStart ? read(start.as<shm::StartRecord>())
                                                 : read(start.as<shm::StartCollectiveRecord>());
}

std::uint64_t launch_of(const shm::Record& start) {
  return read_start(start, [](const auto& record) { return record.launch; });
}

bool tells_segments(const shm::Record& start) {
  return read_start(start, [](const auto& record) { return record.tells_segments != 0; });
}

shm::SegmentRecord record_of(const link::SegmentMove& move, std::uint32_t link, std::uint64_t launch) {
  return {.link = link,
          .peer_rank = move.peer,
          .launch = launch,
          .bytes = move.bytes,
          .began_us = static_cast<std::uint64_t>(move.began_us),
          .ended_us = static_cast<std::uint64_t>(move.ended_us),
          .part = static_cast<std::uint32_t>(move.part),
          .is_sent = move.is_sent ? 1U : 0U};
}

constexpr const char* kKey = "a key of the job's store";

}  // namespace

Result<std::unique_ptr<WorkerLinks>> WorkerLinks::open(Session& session, StagingBuffers& buffers) {
  std::unique_ptr<WorkerLinks> links(new WorkerLinks(session, buffers));
  if (auto ok = links->open_all(); !ok) {
    if (auto usable = session.connection().usable(); !usable) return tl::unexpected(usable.error());  // the true reason
    session.report(ok.error());
    return tl::unexpected(ok.error());
  }
  try {
    links->start_threads();
  } catch (const std::system_error& error) {
    const Error failed{ErrorKind::kExhausted,
                       std::string("cannot start a link's thread: ") + error.what(),
                       "look at the limits of processes and memory (ulimit -u, the cgroup's pids.max)",
                       {}};
    session.report(failed);
    session.end();  // the threads that run wait for launches
    return tl::unexpected(failed);
  }
  return links;
}

Result<void> WorkerLinks::open_all() {
  const World& world = session_.world();
  const auto store = std::make_shared<JobStore>(session_);
  // From when the daemon welcomed this worker.
  const TimeUs left_us = session_.connection().attachment().opens_by_us - MonotonicClock::now();
  const TimeUs opens_by_us = store->clock().now_us() + left_us;
  for (const AnnouncedLink& announced : session_.worker_links()) {
    link::LinkGroup group;
    group.node = world.rank;
    group.nodes = world.size;
    group.prefix = announced.prefix;
    group.store = store;
    group.clock = &store->clock();
    group.connect_deadline_us = opens_by_us;
    group.silence_us = session_.connection().attachment().timeout_us / 2;
    group.member = "rank";
    group.node_of = world.node_of;
    group.encrypts = announced.encrypts;
    auto runner = std::make_unique<Runner>();
    runner->number = announced.number;
    // A ring that takes no more records is noticed by the answer.
    group.on_waiting = [this, raw = runner.get()] {
      static_cast<void>(session_.connection().submit(shm::RunningRecord{.link = raw->number, .launch = raw->launch}));
    };
    auto link = link::open_worker_link(announced.spec, group);
    if (!link) return tl::unexpected(link.error().in("open link " + announced.spec.name()));
    runner->link = std::move(*link);
    runners_.push_back(std::move(runner));
  }
  return {};
}

void WorkerLinks::start_threads() {
  if (runners_.empty()) return;
  session_.on_failure([this](const Error& error) {
    for (const auto& runner : runners_) runner->link->abort(error.message());
  });
  const AllSignalsBlocked inherited;
  for (const auto& runner : runners_) {
    runner->thread = std::thread([this, raw = runner.get()] { run(*raw); });
    pthread_setname_np(runner->thread.native_handle(), ("deft " + runner->link->name()).substr(0, 15).c_str());
  }
}

WorkerLinks::~WorkerLinks() {
  for (const auto& runner : runners_)
    if (runner->thread.joinable()) runner->thread.join();
  session_.on_failure(nullptr);
}

void WorkerLinks::add(const std::shared_ptr<GradientGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const auto& one) { return one.second.expired(); });
  groups_[group->number()] = group;
}

Result<std::shared_ptr<GradientGroup>> WorkerLinks::find_group(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(number);
  if (found != groups_.end())
    if (auto group = found->second.lock()) return group;
  return fail(ErrorKind::kViolation, "the daemon started a launch of a group that was not declared");
}

void WorkerLinks::run(Runner& runner) {
  while (true) {
    const auto start = session_.starts().next(runner.number);
    if (!start) return;
    runner.launch = launch_of(*start);
    if (auto done = execute(runner, *start); !done) return session_.report(done.error());
    const shm::RanRecord ran{.link = runner.number, .launch = runner.launch};
    if (!session_.connection().submit(ran)) return;
  }
}

Result<void> WorkerLinks::execute(Runner& runner, const shm::Record& start) {
  auto request = request_of(start);
  if (!request) return tl::unexpected(request.error());
  if (!tells_segments(start)) return runner.link->run(*request);
  const std::size_t most = link::SegmentLog::most_of_one_round(runner.link->nodes());
  const auto segments = std::make_shared<link::SegmentLog>(request->id, most);
  request->observer = segments;
  if (auto ok = runner.link->run(*request); !ok) return ok;
  for (const link::SegmentMove& move : segments->moves())
    if (auto ok = session_.connection().submit(record_of(move, runner.number, launch_of(start))); !ok) return ok;
  return {};
}

Result<link::WorkRequest> WorkerLinks::request_of(const shm::Record& start) {
  if (start.kind() == shm::RecordKind::kStartCollective)
    return request_of_collective(start.as<shm::StartCollectiveRecord>());
  const auto launch = start.as<shm::StartRecord>();
  const auto group = find_group(launch.group);
  if (!group) return tl::unexpected(group.error());
  const auto part = (*group)->part(launch.slot, launch.offset_bytes, launch.bytes);
  if (!part) return tl::unexpected(part.error());
  return link::WorkRequest::all_reduce(part->data, part->count, part->dtype, part->op);
}

Result<link::WorkRequest> WorkerLinks::request_of_collective(const shm::StartCollectiveRecord& start) {
  const auto data = buffers_.find(start.staging_buffer, start.offset_bytes, start.bytes);
  if (!data) return tl::unexpected(data.error());
  if (start.collective == static_cast<std::uint32_t>(ipc::Collective::kBroadcast))
    return link::WorkRequest::broadcast(*data, start.bytes, start.root);
  const auto dtype = static_cast<model::DType>(start.dtype);
  const std::size_t element = model::dtype_bytes(dtype);
  if (element == 0) return fail(ErrorKind::kViolation, "the daemon started a collective of an unknown type");
  return link::WorkRequest::all_reduce(*data, start.bytes / element, dtype,
                                       static_cast<model::ReduceOp>(start.reduce_op));
}

Result<void> JobStore::set(const std::string& key, std::span<const std::byte> value) {
  if (auto ok = check_name(key, ipc::kMaxNameBytes, kKey); !ok) return ok;
  const std::string_view texts[] = {key};
  return session_.connection().send(ipc::encode(ipc::StoreItem{}, ipc::MessageKind::kStoreSet, texts, value));
}

bool JobStore::ended() const { return !session_.connection().look(); }

Result<std::uint32_t> JobStore::ask(const std::string& key) {
  if (auto ok = check_name(key, ipc::kMaxNameBytes, kKey); !ok) return tl::unexpected(ok.error());
  ipc::StoreItem item;
  item.request = session_.requests().next_number();  // unlike any other number that is asked with
  auto sent = session_.connection().send(ipc::encode(item, ipc::MessageKind::kStoreGet, {key}));
  if (!sent) return tl::unexpected(sent.error());
  return item.request;
}

Result<std::vector<std::byte>> JobStore::answer(std::uint32_t question, TimeUs deadline_us) {
  auto packet = session_.requests().answer(ipc::MessageKind::kStoreValue, question, deadline_us);
  if (!packet) return tl::unexpected(packet.error());
  auto item = ipc::decode<ipc::StoreItem>(packet->bytes, ipc::MessageKind::kStoreValue, 1);
  if (!item) return tl::unexpected(item.error());
  return std::vector<std::byte>(item->tail.begin(), item->tail.end());
}

Result<std::vector<std::vector<std::byte>>> JobStore::get(std::span<const std::string> keys, TimeUs deadline_us) {
  std::vector<std::uint32_t> questions;
  for (const std::string& key : keys) {
    auto question = ask(key);
    if (!question) return tl::unexpected(question.error());
    questions.push_back(*question);
  }
  const TimeUs until_us = std::max(deadline_us, clock_.now_us() + kLeastPatienceUs);
  std::vector<std::vector<std::byte>> values;
  for (const std::uint32_t question : questions) {
    auto value = answer(question, MonotonicClock::now() + kLookUs);
    while (!value && value.error().kind == ErrorKind::kTimeout && clock_.now_us() < until_us)
      value = answer(question, MonotonicClock::now() + kLookUs);
    if (!value) return tl::unexpected(value.error());
    values.push_back(std::move(*value));
  }
  return values;
}

}  // namespace deft::client
