#include "daemon/node/link_recovery.h"

#include <glog/logging.h>

#include <algorithm>

#include "daemon/base/log_lines.h"

namespace deft::daemon {

bool LinkRecovery::failed(std::size_t index, const Error& error) {
  LinkQueue& link = links_.queues()[index];
  if (link.outage.stopping || link.outage.failure_told) return true;  // the leader knows
  const bool of_the_link = error.kind == ErrorKind::kLost || error.kind == ErrorKind::kTimeout;
  if (!links_.can_remove(index) || !of_the_link) return false;
  link.outage.failure_told = true;
  LOG(WARNING) << about(job_).link(link.name) << error.message() << "; asking the leader how to go on without "
               << link.name;
  leader_.send(wire::LinkFailed{static_cast<std::uint32_t>(index), link.outage.epoch, error.in("on " + host_)});
  return true;
}

void LinkRecovery::stop(const wire::LinkStop& message) {
  if (message.link >= links_.queues().size()) return;
  LinkQueue& link = links_.queues()[message.link];
  if (message.epoch != link.outage.epoch || link.outage.stopping || !link.driver || !link.driver->runs_in_daemon())
    return;
  LOG(WARNING) << about(job_).link(link.name) << "link " << link.name << " is lost: " << message.cause.message();
  link.outage.reason = message.cause.message();
  link.outage.stopping = true;
  link.open = false;
  link.driver->abort(link.outage.reason);
}

// Only launches whose end this thread has seen have finished. Others are done again, even if the link has ended them.
bool LinkRecovery::poll() {
  bool any = false;
  for (std::size_t index = 0; index < links_.queues().size(); ++index) {
    LinkQueue& link = links_.queues()[index];
    if (!link.outage.stopping || !link.driver) continue;
    if (!link.driver->finished()) {
      any = true;
      continue;
    }
    link.driver.reset();
    leader_.send(wire::LinkStopped{static_cast<std::uint32_t>(index), link.outage.epoch,
                                   link.finished_below(links_.next_number())});
  }
  return any;
}

Result<void> LinkRecovery::replace(const wire::LinkReplaced& message) {
  auto& queues = links_.queues();
  if (message.link >= queues.size() || message.by >= queues.size()) return {};
  LinkQueue& link = queues[message.link];
  if (!link.outage.stopping || link.driver || message.epoch != link.outage.epoch + 1) return {};
  const std::uint64_t before = link.counters.replayed_parts;
  if (auto ok = link.replay(message.from); !ok) return tl::unexpected(ok.error().in("link " + link.name));
  ++link.outage.epoch;
  link.outage.stopping = link.outage.failure_told = false;
  link.outage.replacer = message.by;
  link.outage.replacers.insert(link.outage.replacer);
  LOG(WARNING) << about(job_).link(link.name) << "goes on without link " << link.name
               << ": what it had to do goes over " << queues[link.outage.replacer].name << ", of which "
               << link.counters.replayed_parts - before << " once more";
  links_.reopen(message.link, message.by);
  return {};
}

void LinkRecovery::release(const wire::JobProgress& progress) {
  auto& queues = links_.queues();
  for (std::size_t i = 0; i < std::min(queues.size(), progress.links.size()); ++i)
    if (progress.links[i].epoch == queues[i].outage.epoch) queues[i].release(progress.links[i].finished_below);
}

void LinkRecovery::report_progress() {
  wire::NodeProgress progress;
  for (auto& link : links_.queues()) {
    progress.links.push_back(
        {link.outage.epoch, link.finished_below(links_.next_number()), link.started_below(links_.next_number())});
    link.untold_bytes = 0;
  }
  leader_.send(std::move(progress));
}

}  // namespace deft::daemon
