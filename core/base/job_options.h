// The options that belong to a job rather than to a process: a worker that sets one sends it to its daemon, and the
// daemons of a job compare them.
#pragma once

#include <array>
#include <string_view>

namespace deft {

inline constexpr std::array<std::string_view, 17> kJobOptions = {"policy",
                                                                 "bucketing",
                                                                 "links",
                                                                 "bucket_bytes",
                                                                 "partition_bytes",
                                                                 "credit_bytes",
                                                                 "max_staleness_steps",
                                                                 "max_merged_steps",
                                                                 "fresh_wait_percent",
                                                                 "max_late_percent",
                                                                 "scale_merged_lr",
                                                                 "link_reserve_percent",
                                                                 "preserver",
                                                                 "preserver_epsilon",
                                                                 "plan",
                                                                 "timeout",
                                                                 "stall_timeout"};

}  // namespace deft
