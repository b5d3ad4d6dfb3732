#include "daemon/node/job_parts.h"

namespace deft::daemon {
namespace {

constexpr TimeUs kLookAgainUs = 2'000;  // at a link that is to end

}  // namespace

JobParts::JobParts(const Surroundings& around, std::shared_ptr<const View> now)
    : around_(around),
      clock(around.reactor.clock()),
      view(std::move(now)),
      store(std::make_shared<StoreClient>(
          around.reactor, [&leader = around.leader](wire::ToLeader message) { leader.send(std::move(message)); })),
      groups(around.members, around.leader, around.scheduler, view->links().size(),
             [&control = around.control](const Error& error) { control.fail(error); }),
      collectives(around.members, around.leader, view),
      measurements(around.members, around.leader, around.scheduler),
      links(around.members, view, groups, collectives,
            around.links.drivers({around.reactor, around.members, view, store}), *this),
      recovery(links, around.leader, around.members.identity().name, around.host),
      watchdog(around.members, view, groups, collectives, around.leader),
      recorder(around.members, view,
               {.host = around.host,
                .state_folder = around.state_folder,
                .offload = [&reactor = around.reactor, user = around.members.identity().uid](auto work, auto done) {
                  reactor.offload(user, std::move(work), std::move(done));
                }}) {}

JobParts::~JobParts() {
  store->cancel({ErrorKind::kLost, "the job has ended", "", {}});
  around_.reactor.cancel(look_again_);
}

void JobParts::links_open() {
  if (around_.members.state() == JobState::kConnecting) around_.leader.send(wire::LinksOpen{});
}

void JobParts::link_failed(std::size_t link, const Error& error) {
  if (!recovery.failed(link, error)) around_.control.suspect(error, FailureDetector::Broken::kAny);
}

void JobParts::progress_due() {
  if (view->node_count() > 1) recovery.report_progress();
}

void JobParts::record_decisions() {
  if (around_.scheduler != nullptr) recorder.take_decisions(*around_.scheduler, MonotonicClock::now());
}

void JobParts::await_stopped_links() {
  if (look_again_ != 0 || around_.members.state() != JobState::kRunning || !recovery.poll()) return;
  look_again_ = around_.reactor.after(kLookAgainUs, [this] {
    look_again_ = 0;
    await_stopped_links();
  });
}

}  // namespace deft::daemon
