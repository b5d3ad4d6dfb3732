// What the leader of a traced job took its links for. Its scheduler spread parts over the links and made its plans by that, and a replay
// of the same policy does so, too.
//
//   const auto believed = believed_links(leader, steps, profile.links);
#pragma once

#include <vector>

#include "core/model/profile.h"
#include "core/replay/worker_steps.h"
#include "core/trace/trace_file.h"

namespace deft::replay {

// The usual cost in the traced steps, by link of `links`, which are some of the leader's. Empty if the trace does not tell it of each link.
std::vector<model::LinkModel> believed_links(const trace::NodeTrace& leader, const std::vector<WorkerStep>& steps,
                                             const std::vector<model::ProfileLink>& links);

}  // namespace deft::replay
