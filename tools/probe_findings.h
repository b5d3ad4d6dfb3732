// Finds in the measurements of `deft probe` what hurts between nodes.
#pragma once

#include <vector>

#include "tools/findings.h"
#include "tools/probe_report.h"

namespace deft::tools {

// MTUs that differ, half-duplex links, links that share a wire. Links over loopback are not judged.
std::vector<Finding> probe_findings(const std::vector<ProbeNode>& nodes, const std::vector<ProbeRow>& rows);

}  // namespace deft::tools
