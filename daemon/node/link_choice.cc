#include "daemon/node/link_choice.h"

#include <glog/logging.h>

#include <algorithm>

#include "core/link/address.h"
#include "core/link/backends.h"
#include "core/link/encryption_rule.h"
#include "core/model/link_names.h"
#include "daemon/base/log_lines.h"
#include "daemon/base/user_threads.h"
#include "daemon/channel/daemon_driver.h"

namespace deft::daemon {
namespace {

// The prefix of a link's keys in the job's store.
std::string prefix_of(const std::string& job, const View& view, std::uint32_t link, std::uint32_t epoch) {
  const std::string prefix = job + "/" + std::to_string(view.epoch()) + "/" + std::to_string(link);
  return epoch == 0 ? prefix : prefix + "/" + std::to_string(epoch);
}

DaemonDriver::Open opener(const DriverRequest& request, const LinkSurroundings& around, const std::string& key_file) {
  if (request.spec.backend == "local") return [] { return Result<std::unique_ptr<link::Link>>(); };
  const Membership& members = around.members;
  const View& view = *around.view;
  link::LinkGroup group;
  group.node = view.node();
  group.nodes = view.node_count();
  group.prefix = prefix_of(members.identity().name, view, request.link, request.epoch);
  group.store = around.store;
  group.clock = &around.reactor.clock();
  group.connect_deadline_us = group.now_us() + time_to_open_us(request.epoch, members.settings().timeout_us);
  group.silence_us = members.settings().silence_us();
  group.key_file = key_file;
  group.encrypts = members.settings().encrypts();
  return [spec = request.spec, group] { return link::open_link(spec, group); };
}

// About as many descriptors as a link takes that the daemon runs.
std::uint64_t descriptors_of(const DriverRequest& request, const LinkSurroundings& around) {
  const link::Backend* const backend = link::find_backend(request.spec.backend);
  if (backend == nullptr) return 0;  // local
  const link::DescriptorNeeds& needs = backend->descriptors;
  const auto& servers = request.spec.interface;
  const std::uint64_t peers = backend->place == link::Place::kServers
                                  ? 1 + static_cast<std::uint64_t>(std::ranges::count(servers, '+'))
                                  : around.view->node_count() - 1;
  return needs.of_link +
         peers * (around.members.settings().encrypts() ? needs.for_each_encrypted : needs.for_each_peer);
}

// The user pays until this has gone. An error if he cannot.
Result<std::shared_ptr<QuotaAccount>> charge(const DriverRequest& request, const LinkSurroundings& around,
                                             const std::shared_ptr<UserQuotas>& quotas) {
  if (quotas == nullptr) return std::shared_ptr<QuotaAccount>();
  auto account = std::make_shared<QuotaAccount>(quotas, around.members.identity().uid);
  if (auto ok = account->take(Quota::kDescriptors, descriptors_of(request, around)); !ok)
    return tl::unexpected(ok.error());
  return account;
}

// Encodings of blocks are added by the owner of a block or by a server, and only daemons encode.
std::optional<Error> cannot_carry(const compress::Codec& codec, const std::vector<link::LinkSpec>& specs) {
  for (const link::LinkSpec& spec : specs) {
    if (spec.backend == "local") continue;
    const link::Backend& backend = *link::find_backend(spec.backend);
    const bool adds = backend.adds_encoded || codec.traits().law == compress::Law::kSparse;
    if (adds && !backend.runs_in_workers()) continue;
    return Error{ErrorKind::kInvalid,
                 spec.name() + " cannot carry gradients that are encoded by " + std::string(codec.traits().name),
                 "use gloo, mpi or ps links, or DEFT_COMPRESSION=none",
                 {}};
  }
  return std::nullopt;
}

std::optional<Error> cannot_encrypt(const std::vector<link::LinkSpec>& specs, bool has_key, bool is_one_machine) {
  constexpr const char* kGiveKey =
      "give all daemons and parameter servers one key (secret_file; deft keygen makes one)";
  for (const link::LinkSpec& spec : specs) {
    if (spec.backend == "local") continue;
    const auto cause = link::clear_cause(link::find_backend(spec.backend)->encryption, has_key, is_one_machine);
    if (cause == link::ClearCause::kNone) continue;
    if (cause == link::ClearCause::kBackend)
      return Error{ErrorKind::kInvalid,
                   spec.name() + " cannot encrypt gradients, and encrypt_gradients is on",
                   "use gloo, tcp or ps links, or set DEFT_ENCRYPT_GRADIENTS=off",
                   {}};
    return Error{ErrorKind::kInvalid,
                 spec.name() + " cannot encrypt gradients: the daemon has no key, and encrypt_gradients is on",
                 std::string(kGiveKey) + ", or set DEFT_ENCRYPT_GRADIENTS=off",
                 {}};
  }
  return std::nullopt;
}

// Why a node with these links cannot take part, if it cannot. A plan chooses no codec that a link cannot carry; a user who has chosen one
// is told.
std::optional<Error> refusal_of(const JobSettings& settings, const std::vector<link::LinkSpec>& specs, bool has_key,
                                bool is_one_machine) {
  if (settings.codecs.back() != nullptr && !settings.chooses_codecs)
    if (auto error = cannot_carry(*settings.codecs.back(), specs)) return error;
  return settings.encrypts() ? cannot_encrypt(specs, has_key, is_one_machine) : std::nullopt;
}

}  // namespace

LinkChoice choose_links(const Membership& members, const std::string& host, bool has_key) {
  const std::string& wanted = members.settings().links;
  const bool alone = members.identity().local_size == members.identity().world;
  const bool in_workers = std::ranges::any_of(link::backends(), [&](const link::Backend& backend) {
    return backend.runs_in_workers() && wanted.find(backend.name) != std::string::npos;
  });
  const std::string context = "links '" + wanted + "' on " + host;
  if (members.identity().world == 1 || (alone && !in_workers)) {
    if (const auto ok = link::check_links(wanted); !ok) return {{}, ok.error().in(context)};
    return {{{"local", "", ""}}, std::nullopt};
  }
  const bool is_one_machine = alone || link::is_loopback_address(members.identity().leader);
  auto specs = link::resolve_links(wanted, is_one_machine);
  if (!specs) return {{}, specs.error().in(context)};
  LinkChoice choice;
  bool local = false;
  for (auto& spec : *specs) {
    if (alone && !model::runs_in_workers(spec.backend)) spec = {"local", "", ""};
    if (spec.backend != "local" || !local) choice.specs.push_back(spec);
    local = local || spec.backend == "local";
  }
  choice.refusal = refusal_of(members.settings(), choice.specs, has_key, is_one_machine);
  LOG(INFO) << about(members.identity()) << "DEFT_LINKS=" << wanted << " is " << link::describe(choice.specs);
  return choice;
}

TimeUs time_to_open_us(std::uint32_t epoch, TimeUs timeout_us) {
  return epoch > 0 ? timeout_us / 3 : timeout_us / 4 * 3;
}

MakeDrivers driver_factory(const std::string& key_file, std::shared_ptr<UserQuotas> quotas) {
  return [key_file, quotas = std::move(quotas)](LinkSurroundings surroundings) -> LinkSet::MakeDriver {
    return [around = std::move(surroundings), key_file, quotas](DriverRequest request) -> std::unique_ptr<LinkDriver> {
      const Membership& members = around.members;
      if (model::runs_in_workers(request.spec.backend)) {
        const auto put_record = [&members](std::size_t worker, const shm::Record& record) {
          if (WorkerPort* const port = members.workers()[worker].port) port->complete(record);
        };
        InProcessDriver::Members all{around.view->node(), {}, around.view->node_of_rank()};
        for (const auto& worker : members.workers()) all.ranks.push_back(worker.rank);
        return std::make_unique<InProcessDriver>(around.reactor, request.link, std::move(all),
                                                 std::move(request.records_of), put_record, std::move(request.on_open),
                                                 std::move(request.on_done));
      }
      // The driver keeps what opens its link until its thread has ended.
      auto open = [counted = std::make_shared<const UserThread>(members.identity().uid),
                   paid = charge(request, around, quotas), opened = opener(request, around, key_file)] {
        return paid ? opened() : tl::unexpected(paid.error());
      };
      return std::make_unique<DaemonDriver>(around.reactor, request.spec.name(), around.view->node(), std::move(open),
                                            std::move(request.transfer_of), std::move(request.on_open),
                                            std::move(request.on_done));
    };
  };
}

LinkMaker link_maker(const std::string& key_file, std::shared_ptr<UserQuotas> quotas) {
  return {[has_key = !key_file.empty()](const Membership& members, const std::string& host) {
            return choose_links(members, host, has_key);
          },
          driver_factory(key_file, std::move(quotas))};
}

JobLinks links_of_workers(const Membership& members, const View& view) {
  JobLinks links;
  for (std::uint32_t i = 0; i < view.links().size(); ++i) {
    if (model::runs_in_workers(view.links()[i].backend))
      links.in_workers.push_back(
          {i, view.links()[i], prefix_of(members.identity().name, view, i, 0), members.settings().encrypts()});
    else
      ++links.in_daemons;
  }
  return links;
}

}  // namespace deft::daemon
