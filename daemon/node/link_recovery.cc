#include "daemon/node/link_recovery.h"

#include <glog/logging.h>

#include <algorithm>

namespace deft::daemon {

bool LinkRecovery::failed(std::size_t index, const Error& error) {
  LinkQueue& link = links_.queues()[index];
  if (link.stopping || link.failure_told) return true;  // the leader knows
  const bool of_the_link = error.kind == ErrorKind::kLost || error.kind == ErrorKind::kTimeout;
  if (!links_.can_lose(index) || !of_the_link) return false;
  link.failure_told = true;
  LOG(WARNING) << "[" << job_ << "] " << error.message() << "; asking the leader how to go on without " << link.name;
  leader_.send(wire::LinkFailed{static_cast<std::uint32_t>(index), link.epoch, error.in("on " + host_)});
  return true;
}

void LinkRecovery::stop(const wire::LinkStop& message) {
  if (message.link >= links_.queues().size()) return;
  LinkQueue& link = links_.queues()[message.link];
  if (message.epoch != link.epoch || link.stopping || !link.driver || !link.driver->runs_in_daemon()) return;
  LOG(WARNING) << "[" << job_ << "] link " << link.name << " is lost: " << message.cause.message();
  link.lost = message.cause.message();
  link.stopping = true;
  link.open = false;
  link.driver->abort(link.lost);
}

// What has finished is what this thread has seen finish: what the link did beyond that is forgotten, and done again.
bool LinkRecovery::poll() {
  bool any = false;
  for (std::size_t index = 0; index < links_.queues().size(); ++index) {
    LinkQueue& link = links_.queues()[index];
    if (!link.stopping || !link.driver) continue;
    if (!link.driver->finished()) {
      any = true;
      continue;
    }
    link.driver.reset();
    leader_.send(
        wire::LinkStopped{static_cast<std::uint32_t>(index), link.epoch, link.finished_below(links_.next_number())});
  }
  return any;
}

Result<void> LinkRecovery::replace(const wire::LinkReplaced& message) {
  auto& queues = links_.queues();
  if (message.link >= queues.size() || message.by >= queues.size()) return {};
  LinkQueue& link = queues[message.link];
  if (!link.stopping || link.driver || message.epoch != link.epoch + 1) return {};
  const std::uint64_t before = link.replayed_parts;
  if (auto ok = link.replay(message.from); !ok) return tl::unexpected(ok.error().in("link " + link.name));
  ++link.epoch;
  link.stopping = link.failure_told = false;
  link.replacer = message.by;
  link.replacers.insert(link.replacer);
  LOG(WARNING) << "[" << job_ << "] goes on without link " << link.name << ": what it had to do goes over "
               << queues[link.replacer].name << ", of which " << link.replayed_parts - before << " once more";
  links_.reopen(message.link, message.by);
  return {};
}

void LinkRecovery::release(const wire::JobProgress& progress) {
  auto& queues = links_.queues();
  for (std::size_t i = 0; i < std::min(queues.size(), progress.links.size()); ++i)
    if (progress.links[i].epoch == queues[i].epoch) queues[i].release(progress.links[i].finished_below);
}

void LinkRecovery::tell_progress() {
  wire::NodeProgress progress;
  for (auto& link : links_.queues()) {
    progress.links.push_back(
        {link.epoch, link.finished_below(links_.next_number()), link.started_below(links_.next_number())});
    link.untold_bytes = 0;
  }
  leader_.send(std::move(progress));
}

}  // namespace deft::daemon
