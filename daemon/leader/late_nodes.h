// Finds nodes that have not done what others wait for: to ask for a collective, or to declare a group.
//
//   LateNodes late(timing, "asked for");
//   late.came("loss", node, nodes, now_us);          // the first node's begins the wait
//   late.done("loss");                               // all have come
//   for (const auto& owed : late.watch(now_us, is_gone)) ...   // with every heartbeat
//
// No I/O, no clock. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/clock.h"
#include "daemon/base/settings.h"

namespace deft::daemon {

class LateNodes {
 public:
  struct Timing {
    TimeUs warning_us = 0;        // a node that is late for this long is reported, and again after as long
    TimeUs stall_timeout_us = 0;  // the job ends when a node is late for longer
    TimeUs gone_us = 0;           // or for this long, if the node has ended
  };

  struct Owed {
    std::size_t node = 0;
    std::string_view duty;  // "asked for": what the node has not done with `name`
    std::string name;
    std::optional<std::uint32_t> group = {};  // of a declaration
    TimeUs age_us = 0;
    bool gone = false;      // the node has ended: the job fails
    bool too_long = false;  // longer than stall_timeout_us: the job fails
  };

  // `duty`: a literal.
  LateNodes(const Timing& timing, std::string_view duty) : timing_(timing), duty_(duty) {}

  // `group`: of a declaration.
  void came(const std::string& name, std::size_t node, std::size_t nodes, TimeUs now_us,
            std::optional<std::uint32_t> group = {});
  void done(const std::string& name) { waits_.erase(name); }
  // What nodes owe for long enough to be told, the first that fails the job at the end.
  [[nodiscard]] std::vector<Owed> watch(TimeUs now_us, const std::function<bool(std::size_t node)>& is_gone);

 private:
  struct Wait {
    std::vector<bool> came;  // by node
    TimeUs since_us = 0;
    std::optional<std::uint32_t> group;
  };

  const Timing timing_;
  const std::string_view duty_;
  std::map<std::string, Wait> waits_;  // by name
  TimeUs watched_us_ = 0;              // when watch() looked last
};

inline LateNodes::Timing lateness_of(const JobSettings& settings) {
  return {settings.stall_warning_us(), settings.stall_timeout_us, settings.timeout_us / 4};
}

}  // namespace deft::daemon
