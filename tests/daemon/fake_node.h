// A node of a job without a network: two workers of four, a view of two nodes, and a leader that only listens.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/leader/scheduler_port.h"
#include "daemon/node/job_control.h"
#include "daemon/node/membership.h"
#include "daemon/node/view.h"
#include "tests/daemon/fake_worker.h"

namespace deft::daemon {

struct FakeScheduler final : SchedulerPort {
  void bucket_ready(std::uint32_t group, model::BucketIndex bucket, std::uint64_t generation) override {
    ready.push_back({group, bucket, generation});
  }
  void stage_began(sched::Stage stage, std::uint64_t step, TimeUs waited_us) override {
    stages.push_back({static_cast<std::uint64_t>(stage), step, static_cast<std::uint64_t>(waited_us)});
  }
  Result<void> residuals_asked_for(std::uint32_t, std::uint64_t) override { return {}; }
  Result<void> flushed(std::uint32_t group, std::uint64_t step) override {
    flushes.push_back({group, step});
    if (refuses) return fail(ErrorKind::kViolation, "far ahead");
    return {};
  }
  std::vector<GroupPolicy> take_policies() override { return std::exchange(policies, {}); }
  [[nodiscard]] const model::LinkModel* link_cost(model::LinkIndex link) const override {
    return link < links.size() ? &links[link] : nullptr;
  }
  void launch_finished(std::uint64_t number, std::optional<TimeUs> /*link_us*/, bool /*overlapped*/) override {
    finished.push_back(number);
  }

  std::vector<std::vector<std::uint64_t>> ready, stages, flushes;
  std::vector<std::uint64_t> finished;
  std::vector<GroupPolicy> policies;
  std::vector<model::LinkModel> links;
  bool refuses = false;
};

struct FakeControl final : JobControl {
  void fail(const Error& error) override { failures.push_back(error); }
  void suspect(const Error& error, FailureDetector::Broken) override { suspicions.push_back(error); }
  void end(const Error& error, bool /*clean*/) override { ends.push_back(error); }
  void joined(wire::Joined message) override { views.push_back(std::move(message)); }
  void begin() override { ++begun; }

  std::vector<Error> failures, suspicions, ends;
  std::vector<wire::Joined> views;
  int begun = 0;
};

inline JobSettings fake_settings() {
  JobSettings settings;
  settings.policy = "fifo";
  settings.timeout_us = 3'000'000;  // warns of a stall after 1 s; grace 0.75 s
  settings.stall_timeout_us = 10'000'000;
  return settings;
}

// Ranks 0 and 1, on node 0 of two; ranks 2 and 3 are elsewhere.
struct FakeNode {
  explicit FakeNode(std::vector<link::LinkSpec> specs = {{"gloo", "eth0", "10.0.0.1"}, {"gloo", "eth1", "10.0.1.1"}}) {
    view = View::make(7, 4, {{{"hosta", {0, 1}, {}}, {"hostb", {2, 3}, {}}}, 0}, std::move(specs)).value();
    for (auto* worker : {&first, &second}) EXPECT_TRUE(members.attach(*worker));
    for (const JobState state : {JobState::kJoining, JobState::kConnecting, JobState::kRunning}) members.advance(state);
  }
  // The worker says goodbye.
  void leave(FakeWorker& worker) {
    members.detach(worker);
    const std::uint32_t ranks[] = {worker.attached.rank};
    members.mark_left(ranks);
  }

  FakeWorker first{0, 4, 0, 2}, second{1, 4, 1, 2};
  Membership members{{"job", 7, 4, 2, "", ""}, fake_settings()};
  std::shared_ptr<const View> view;
  FakeLeader leader;
  FakeScheduler scheduler;
};

// A group of one float tensor for each extent, as every worker declares it.
inline Declaration declaration(std::vector<std::uint64_t> extents, std::uint32_t group = 0, std::uint32_t slots = 1) {
  Declaration declaration;
  declaration.group = group;
  declaration.name = "model";
  declaration.slots = slots;
  for (const auto extent : extents)
    declaration.tensors.push_back({"t" + std::to_string(declaration.tensors.size()),
                                   model::DType::kFloat32,
                                   {extent},
                                   static_cast<std::uint32_t>(extents.size() - declaration.tensors.size())});
  return declaration;
}

}  // namespace deft::daemon
