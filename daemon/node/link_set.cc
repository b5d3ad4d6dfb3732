#include "daemon/node/link_set.h"

#include <algorithm>
#include <exception>

#include "core/link/backends.h"

namespace deft::daemon {

LinkSet::LinkSet(const Membership& members, std::shared_ptr<const View> view, LaunchSource& gradients,
                 LaunchSource& collectives, MakeDriver make_driver, LinkEvents& events)
    : members_(members),
      view_(std::move(view)),
      gradients_(gradients),
      collectives_(collectives),
      make_driver_(std::move(make_driver)),
      events_(events),
      queues_(view_->links().size()) {
  for (std::size_t i = 0; i < queues_.size(); ++i) queues_[i].name = view_->links()[i].name();
}

void LinkSet::open() {
  for (std::size_t link = 0; link < queues_.size(); ++link) reopen(link, link);
}

void LinkSet::reopen(std::size_t link, std::size_t over) {
  DriverRequest request;
  request.link = static_cast<std::uint32_t>(link);
  request.spec = view_->links()[over];
  request.epoch = queues_[link].outage.epoch;
  request.transfer_of = [this](const SubCommTask& launch) { return transfer_of(launch); };
  request.records_of = [this](const SubCommTask& launch) { return records_of(launch); };
  request.on_open = [this, link](const Result<void>& result) { on_open(link, result); };
  request.on_done = [this, link](const TransferDone& done) { on_done(link, done); };
  try {
    queues_[link].driver = make_driver_(std::move(request));
  } catch (const std::exception& failure) {
    return events_.failed({ErrorKind::kExhausted,
                           "link " + queues_[link].name + " cannot be opened: " + failure.what(),
                           "raise the limit of threads or of memory of deftd",
                           {}});
  }
  pump(link);
}

void LinkSet::on_open(std::size_t link, const Result<void>& result) {
  if (!result) return events_.link_failed(link, result.error());
  queues_[link].open = true;
  if (std::ranges::all_of(queues_, &LinkQueue::open)) events_.links_open();
}

Result<void> LinkSet::take_number(std::uint64_t number) {
  if (number != next_number_)
    return fail(ErrorKind::kInternal,
                "launch " + std::to_string(number) + " came where " + std::to_string(next_number_) + " was due");
  ++next_number_;
  return {};
}

void LinkSet::pump() {
  for (std::size_t link = 0; link < queues_.size(); ++link) pump(link);
}

void LinkSet::pump(std::size_t index) {
  LinkQueue& link = queues_[index];
  if (link.outage.stopping || !link.driver) return;
  const bool removable = can_remove(index);
  while (!link.waiting.empty() && link.running.size() < kStartedAhead) {
    if (!link.waiting.front().replay && !source_of(link.waiting.front()).can_start(link.waiting.front())) return;
    const std::uint64_t number = link.waiting.front().number;
    const auto [started, _] = link.running.emplace(number, std::move(link.waiting.front()));
    link.waiting.pop_front();
    if (removable && !started->second.replay_buffer)
      started->second.replay_buffer = link.spare.take(started->second.bytes);
    link.driver->start(started->second);
  }
}

Transfer LinkSet::transfer_of(const SubCommTask& launch) const {
  Transfer transfer = launch.replay ? *launch.replay : source_of(launch).transfer_of(launch);
  transfer.token = launch.number;
  transfer.replay_buffer = launch.replay_buffer;
  // Of a launch that runs again another node may tell what it sent and received the first time.
  transfer.tells_segments = !launch.runs_again && events_.wants_segments();
  return transfer;
}

InProcessDriver::Records LinkSet::records_of(const SubCommTask& launch) const {
  InProcessDriver::Records records = source_of(launch).records_of(launch);
  if (!events_.wants_segments()) return records;
  for (auto& of_worker : records)
    for (auto& start : of_worker) std::visit([](auto& record) { record.tells_segments = 1; }, start);
  return records;
}

void LinkSet::on_done(std::size_t index, const TransferDone& done) {
  if (members_.state() != JobState::kRunning) return;
  LinkQueue& link = queues_[index];
  const auto it = link.running.find(done.token);
  if (it == link.running.end()) return;
  if (!done.result) return events_.link_failed(index, done.result.error());
  const SubCommTask launch = std::move(it->second);
  link.running.erase(it);
  LaunchSource& source = source_of(launch);
  ++link.counters.parts;
  if (source.is_merged(launch)) ++link.counters.merged_parts;
  if (launch.half != model::AllReduceHalf::kReduceScatter) link.counters.bytes += done.bytes;  // the all-gather counts
  link.counters.wire_bytes += done.wire_bytes;
  link.counters.busy_us += done.busy_us;
  if (done.link_us) link.counters.transfers.add(*done.link_us);
  link.counters.add(done.traffic);
  link.counters.add(done.codec_loss);
  if (launch.replay_buffer) {
    SubCommTask kept = launch;
    kept.replay = transfer_of(launch);
    kept.replay->buffers.clear();
    kept.replay->keep.clear();
    link.finished(std::move(kept), done.bytes);
    if (link.untold_bytes >= kTellEveryBytes) events_.progress_due();
  }
  pump(index);
  if (launch.replay) return;  // it was done here before the link was lost
  if (auto ok = source.finish(launch, done); !ok) return events_.failed(ok.error());
  events_.transferred(index, launch, done);
  if (launch.half == model::AllReduceHalf::kReduceScatter) pump();  // its all-gather may wait, on any link
}

Result<LinkDriver*> LinkSet::driver_of_workers(std::uint32_t link) {
  if (link < queues_.size() && queues_[link].driver && !queues_[link].driver->runs_in_daemon())
    return queues_[link].driver.get();
  return fail(ErrorKind::kViolation, "an unknown in-process link ran a launch");
}

void LinkSet::abort(const std::string& reason) {
  for (auto& link : queues_)
    if (link.driver) link.driver->abort(reason);
}

bool LinkSet::finished() {
  return std::ranges::all_of(queues_, [](LinkQueue& link) { return !link.driver || link.driver->finished(); });
}

// The leader chooses among the same links: see LinkFailover there.
bool LinkSet::can_remove(std::size_t index) const {
  const auto runs_here = [](const LinkQueue& link) { return link.driver && link.driver->runs_in_daemon(); };
  if (members_.state() != JobState::kRunning || view_->node_count() < 2 || !runs_here(queues_[index])) return false;
  for (std::size_t other = 0; other < queues_.size(); ++other)
    if (other != index && queues_[other].outage.reason.empty() && runs_here(queues_[other]) &&
        queues_[index].outage.replacers.count(static_cast<std::uint32_t>(other)) == 0)
      return true;
  return false;
}

nlohmann::json LinkSet::status() const {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& link : queues_) {
    json.push_back({{"name", link.name},
                    {"open", link.open},
                    {"parts", link.counters.parts},
                    {"merged_parts", link.counters.merged_parts},
                    {"bytes", link.counters.bytes},
                    {"wire_bytes", link.counters.wire_bytes},
                    {"busy_us", link.counters.busy_us},
                    {"transfers", link.counters.transfers.json()},
                    {"waiting", link.waiting.size()},
                    {"running", link.running.size()},
                    {"kept", link.kept.size()},
                    {"spare_bytes", link.spare.bytes()},
                    {"run_again", link.counters.replayed_parts},
                    {"is_lost", !link.outage.reason.empty()}});
    if (const auto& connections = link.counters.connections) json.back()["connections"] = connections->json();
    if (const CodecLoss& loss = link.counters.codec_loss; loss.given > 0)
      json.back()["codec_error"] = loss.left_out / loss.given;
    if (link.outage.reason.empty()) continue;
    json.back()["lost"] = link.outage.reason;
    json.back()["goes_over"] = link.outage.stopping ? "" : queues_[link.outage.replacer].name;
  }
  return json;
}

}  // namespace deft::daemon
