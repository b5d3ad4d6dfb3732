// The books of a policy about the links: the expected cost of each link, and the launches that are in flight on it. Policies
// use them to spread parts over links.
//
//   LinkBoard board(links, {.bytes = credit});
//   if (bytes <= board.room_bytes(link)) board.launch(launch, now_us);
//   board.finish(launch, now_us);
//
// A link runs its launches one after the other. The expected times come from the link's model. Every real finish corrects
// them, so that errors do not add up. Pure and not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/model/buckets.h"
#include "core/sched/scheduler.h"
#include "core/sched/size_limit.h"

namespace deft::sched {

class LinkBoard {
 public:
  // `window` is the credit of each link: the most bytes in flight at once. A larger launch goes alone.
  LinkBoard(const std::vector<model::LinkModel>& links, SizeLimit window);

  [[nodiscard]] model::LinkIndex count() const { return static_cast<model::LinkIndex>(links_.size()); }
  [[nodiscard]] double cost_us(model::LinkIndex link, std::uint64_t bytes) const {
    const model::LinkModel& model = links_[link].model;
    return model.latency_us + static_cast<double>(bytes) / model.bytes_per_us;
  }
  [[nodiscard]] const model::LinkModel& link_model(model::LinkIndex link) const { return links_[link].model; }
  [[nodiscard]] double bytes_per_us(model::LinkIndex link) const { return links_[link].model.bytes_per_us; }
  // The time when everything in flight on `link` will be done.
  [[nodiscard]] double free_at_us(model::LinkIndex link, TimeUs now_us) const;
  // Writes that time of each link to `out`.
  void list_free_at_us(TimeUs now_us, std::vector<double>& out) const;
  // The link on which `bytes` would end first, if each link i begins them at free_at_us[i]. That link is then free when they end.
  model::LinkIndex give_to_earliest(std::uint64_t bytes, std::vector<double>& free_at_us) const;
  // The largest launch that `link` has room for, after the `planned_bytes` that the caller is about to launch there.
  [[nodiscard]] std::uint64_t room_bytes(model::LinkIndex link, std::uint64_t planned_bytes = 0) const;
  [[nodiscard]] std::uint64_t on_way_bytes(model::LinkIndex link) const { return links_[link].bytes; }
  [[nodiscard]] bool is_lost(model::LinkIndex link) const { return links_[link].lost; }
  [[nodiscard]] bool is_idle(model::LinkIndex link) const { return links_[link].queue.empty() && !links_[link].lost; }

  void launch(const Launch& launch, TimeUs now_us);
  void finish(const Launch& launch, TimeUs now_us);
  void measured(model::LinkIndex link, const model::LinkModel& model);
  void set_window(SizeLimit window) { window_ = window; }
  void remove(model::LinkIndex link) { links_.at(link).lost = true; }  // the link is lost: never free, no room

 private:
  struct InFlight {
    std::uint64_t id;
    std::uint64_t bytes;
    double cost_us;
  };
  struct State {
    model::LinkModel model;
    std::deque<InFlight> queue;
    std::uint64_t bytes = 0;
    double queued_us = 0;      // the cost of the whole queue
    TimeUs head_began_us = 0;  // when the first launch of the queue began
    bool lost = false;
  };
  std::vector<State> links_;
  SizeLimit window_;
};

// True if the numbers are finite, the throughput is positive, and the latency is not negative.
bool is_sane(const model::LinkModel& link);

}  // namespace deft::sched
