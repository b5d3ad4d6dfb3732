// What each link of a traced job costs: the latency of a part, the throughput of an all-reduce, and the burst that it carries at once after
// a pause (link_burst.h).
//
//   for (const model::ProfileLink& link : measured_links(job, problems)) ... link.latency_us, *link.bytes_per_us, link.burst_bytes
//
// Throughputs count bytes on the wire: an encoded gradient counts its encoded bytes, and half an all-reduce counts half. A link serves one
// transfer after the other. The time of a transfer counts from the moment when the last node had brought its gradients, so a slow worker
// does not make a link slow (dPRO, section 4.2: a RECV begins at the earliest with its SEND).
#pragma once

#include <string>
#include <vector>

#include "core/model/profile.h"
#include "core/replay/job_trace.h"

namespace deft::replay {

// Links that carried nothing are left out, and named in `problems`. The job has a leader.
std::vector<model::ProfileLink> measured_links(const JobTrace& job, std::vector<std::string>& problems);

}  // namespace deft::replay
