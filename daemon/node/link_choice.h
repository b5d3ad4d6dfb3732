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
#include "daemon/base/user_quotas.h"
#include "daemon/node/link_set.h"
#include "daemon/node/membership.h"
#include "daemon/node/view.h"

namespace deft::daemon {

struct LinkChoice {
  std::vector<link::LinkSpec> specs;
  std::optional<Error> refusal;  // why this node cannot take part
};

// A node that has all workers needs no link between nodes: whatever DEFT_LINKS says of those, "local" stands for them. Only the form of
// DEFT_LINKS is checked then, since the list may be for the NICs of other machines.
// `members` is complete. Reads the NICs of this machine, `host`. `has_key`: that daemons and parameter servers share.
LinkChoice choose_links(const Membership& members, const std::string& host, bool has_key);

struct LinkSurroundings {  // of the links of a job on this node
  Reactor& reactor;
  const Membership& members;
  std::shared_ptr<const View> view;
  std::shared_ptr<link::Store> store;
};

// The real drivers of the links. Links that the daemon runs have threads of their own and meet through the store. `key_file`: of the key
// that daemons and parameter servers share. `quotas`: the job's user pays for the links' descriptors; null: nobody does.
using MakeDrivers = std::function<LinkSet::MakeDriver(LinkSurroundings around)>;
MakeDrivers driver_factory(const std::string& key_file, std::shared_ptr<UserQuotas> quotas);

// How long a link may take to open. At the start of a job links have a timeout: a quarter of it is for finding out who is to blame. A
// replacement (`epoch` above 0) may take a third of the timeout.
TimeUs time_to_open_us(std::uint32_t epoch, TimeUs timeout_us);

struct LinkMaker {
  std::function<LinkChoice(const Membership& members, const std::string& host)> choose;
  MakeDrivers drivers;
};
LinkMaker link_maker(const std::string& key_file, std::shared_ptr<UserQuotas> quotas = nullptr);

// The links as a worker hears of them: the links that it runs itself, and how many links the daemons run.
JobLinks links_of_workers(const Membership& members, const View& view);

}  // namespace deft::daemon
