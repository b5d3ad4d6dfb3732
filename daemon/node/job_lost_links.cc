// A node's part when a link is lost while others are left (daemon/channel/link_queue.h says what is run again, and why that is right):
//
//   the link fails here, or the leader sees that it stalls ->  LINK_FAILED to the leader
//   LINK_STOP     every node ends its executor of that link, so that nothing touches the gradients any more
//   LINK_STOPPED  -> the leader, with the first launch that has not finished here; the smallest of all counts
//   LINK_REPLACED every node opens another link of its own, over what the leader chose, in the place of the lost one, and
//                 runs the launches from that number on: those that it has finished from what it kept, the others as they are
//
// The order of the launches of that link stays as it was, and no other link's is touched: nothing can come to wait in a circle.
// The policies are told at once and choose the link no more; plans leave it with the next one.
#include <glog/logging.h>

#include <algorithm>

#include "core/link/backends.h"
#include "daemon/node/job.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kLookAgainUs = 2'000;                 // at a link that is to end
constexpr std::uint64_t kTellEveryBytes = 4ULL << 20;  // finished on a link, and kept until all nodes have told

}  // namespace

// The leader chooses among the same links: leader_links.cc.
bool Job::can_lose(std::size_t link) const {
  if (state_ != State::kRunning || nodes_.size() < 2 || !links_[link].driver->runs_in_daemon()) return false;
  for (std::size_t other = 0; other < links_.size(); ++other)
    if (other != link && links_[other].lost.empty() && links_[other].driver->runs_in_daemon() &&
        links_[link].replacers.count(static_cast<std::uint32_t>(other)) == 0)
      return true;
  return false;
}

Transfer Job::transfer_of(const SubCommTask& launch) const {
  Transfer transfer = launch.replay         ? *launch.replay
                      : launch.is_operation ? operation_transfer(launch)
                                            : gradient_transfer(launch);
  transfer.token = launch.number;
  transfer.replay_buffer = launch.replay_buffer;
  return transfer;
}

void Job::keep(std::size_t index, const SubCommTask& launch, std::size_t transferred) {
  if (!launch.replay_buffer) return;
  SubCommTask kept = launch;
  kept.replay = transfer_of(launch);
  kept.replay->buffers.clear();
  kept.replay->keep.clear();
  links_[index].finished(std::move(kept), transferred);
  if (links_[index].untold_bytes >= kTellEveryBytes) tell_progress();
}

void Job::tell_progress() {
  if (nodes_.size() < 2) return;
  wire::NodeProgress progress;
  for (auto& link : links_) {
    progress.links.push_back({link.epoch, link.finished_below(next_number_), link.started_below(next_number_)});
    link.untold_bytes = 0;
  }
  to_leader(std::move(progress));
}

void Job::on_link_progress(const wire::JobProgress& progress) {
  for (std::size_t i = 0; i < links_.size() && i < progress.links.size(); ++i) {
    const auto& all = progress.links[i];
    if (all.epoch == links_[i].epoch) links_[i].release(all.finished_below);
  }
}

void Job::on_link_error(std::size_t index, const Error& error) {
  LinkQueue& link = links_[index];
  if (link.stopping || link.failure_told) return;
  const bool of_the_link = error.kind == ErrorKind::kLost || error.kind == ErrorKind::kTimeout;
  if (!can_lose(index) || !of_the_link) return suspect(error);
  link.failure_told = true;
  LOG(WARNING) << "[" << name_ << "] " << error.message() << "; asking the leader how to go on without " << link.name;
  to_leader(wire::LinkFailed{static_cast<std::uint32_t>(index), link.epoch, error.in("on " + context_.host)});
}

void Job::on_link_stop(const wire::LinkStop& stop) {
  if (state_ != State::kRunning || stop.link >= links_.size()) return;
  LinkQueue& link = links_[stop.link];
  if (stop.epoch != link.epoch || link.stopping || !link.driver->runs_in_daemon()) return;
  const Error& cause = stop.cause;
  LOG(WARNING) << "[" << name_ << "] link " << link.name << " is lost: " << cause.message();
  link.lost = cause.message();
  link.stopping = true;
  link.open = false;
  link.driver->abort(cause.message());
  await_stop(stop.link);
}

// What has finished is what this thread has seen finish: what the link did beyond that is forgotten, and done again.
void Job::await_stop(std::size_t index) {
  LinkQueue& link = links_[index];
  if (!link.driver->finished()) {
    context_.reactor.after(kLookAgainUs, [weak = weak_from_this(), index] {
      if (const auto job = weak.lock(); job && job->state_ == State::kRunning) job->await_stop(index);
    });
    return;
  }
  to_leader(wire::LinkStopped{static_cast<std::uint32_t>(index), link.epoch, link.finished_below(next_number_)});
}

void Job::on_link_replaced(const wire::LinkReplaced& replaced) {
  if (state_ != State::kRunning || replaced.link >= links_.size() || replaced.by >= links_.size()) return;
  const std::size_t index = replaced.link;
  LinkQueue& link = links_[index];
  if (!link.stopping || replaced.epoch != link.epoch + 1) return;
  const std::uint64_t before = link.replayed_parts;
  if (auto ok = link.replay(replaced.from); !ok) return fail_job(ok.error().in("link " + link.name));
  ++link.epoch;
  link.stopping = link.failure_told = false;
  link.replacer = replaced.by;
  link.replacers.insert(link.replacer);
  LOG(WARNING) << "[" << name_ << "] goes on without link " << link.name << ": what it had to do goes over "
               << links_[link.replacer].name << ", of which " << link.replayed_parts - before << " once more";
  link.driver = daemon_driver(index, link_specs_[link.replacer], MonotonicClock::now() + settings_.timeout_us / 3);
  pump(index);
}

}  // namespace deft::daemon
