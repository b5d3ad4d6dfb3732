// The links of a node in a job, from DEFT_LINKS; and what drives them. A job gets both functions by a LinkMaker, so that a test puts
// links without a thread or a network in their place. Reactor thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/link/link.h"
#include "daemon/base/reactor.h"
#include "daemon/node/link_set.h"
#include "daemon/node/membership.h"
#include "daemon/node/view.h"

namespace deft::daemon {

struct LinkChoice {
  std::vector<link::LinkSpec> specs;
  std::optional<Error> refusal;  // why this node cannot take part
};

// A node that has all workers needs no link between nodes: whatever DEFT_LINKS says of those, "local" stands for them.
// `members` is complete. Reads the NICs of this machine, `host`. `has_key`: that daemons and parameter servers share.
LinkChoice choose_links(const Membership& members, const std::string& host, bool has_key);

// The real drivers of the links of `view`. Links that the daemon runs have threads of their own and meet through `store`. The first
// opening may take the job's timeout, a replacement a third of it. `key_file`: of the key that daemons and parameter servers share.
using MakeDrivers = std::function<LinkSet::MakeDriver(
    Reactor& reactor, const Membership& members, std::shared_ptr<const View> view, std::shared_ptr<link::Store> store)>;
MakeDrivers driver_factory(const std::string& key_file);

struct LinkMaker {
  std::function<LinkChoice(const Membership& members, const std::string& host)> choose;
  MakeDrivers drivers;
};
LinkMaker link_maker(const std::string& key_file);

// The links as a worker hears of them: the links that it runs itself, and how many links the daemons run.
JobLinks links_of_workers(const Membership& members, const View& view);

}  // namespace deft::daemon
