// From DEFT_LINKS to NICs and servers.
#include <algorithm>
#include <array>

#include "core/base/text.h"
#include "core/link/address.h"
#include "core/link/backends.h"
#include "core/link/nics.h"
#include "core/link/servers.h"

namespace deft::link {
namespace {

// Bridges of container and machine managers: they exist on every node, with the same address, and lead nowhere.
constexpr std::array<std::string_view, 7> kLocalBridges = {"docker", "virbr", "podman", "cni",
                                                           "lxcbr",  "lxdbr", "incusbr"};
// And 12 digits of the network's id: docker compose makes such a bridge for each project.
constexpr std::string_view kDockerNetwork = "br-";
constexpr std::size_t kDockerDigits = 12;

constexpr std::string_view kSyntaxFix = "write for instance gloo:eth0,gloo:eth1 or auto";

// One entry of the list: `names` has several only in an exclusion (`^lo,docker`) or in `gloo:eth0,eth1`. An exclusion of
// nothing stands for all usable NICs (`gloo:auto`).
struct Entry {
  const Backend* backend = nullptr;
  std::vector<std::string_view> names;
  bool excludes = false;
};

std::string listed(std::span<const Nic> nics) {
  std::string text;
  for (const Nic& nic : nics) {
    text += (text.empty() ? "" : ", ") + nic.name;
    if (!nic.up) text += " (down)";
    if (nic.up && nic.address.empty()) text += " (no address)";
  }
  return text.empty() ? "none" : text;
}

bool is_usable(const Nic& nic) { return nic.up && !nic.address.empty(); }

bool is_local_bridge(const Nic& nic) {
  const std::string_view name = nic.name;
  const bool is_dockers = name.starts_with(kDockerNetwork) && name.size() == kDockerNetwork.size() + kDockerDigits &&
                          name.find_first_not_of("0123456789abcdef", kDockerNetwork.size()) == std::string_view::npos;
  return is_dockers ||
         std::ranges::any_of(kLocalBridges, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Of IPv4: nics.cc leaves those of IPv6 out. Many a server has a NIC that leads to its own management controller alone.
bool is_link_local(const Nic& nic) { return nic.address.starts_with("169.254."); }

// An `=` asks for the exact name; without it a NIC of just this name is meant, or else all whose names begin so.
bool matches(std::string_view pattern, const Nic& nic) {
  return pattern.starts_with('=') ? nic.name == pattern.substr(1) : nic.name.starts_with(pattern);
}

tl::unexpected<Error> no_nic_named() {
  return fail(ErrorKind::kInvalid, "a link without a NIC's name", std::string(kSyntaxFix));
}

Result<void> add_nic(Entry& entry, std::string_view pattern) {
  if (pattern.empty() || pattern == "=" || pattern.starts_with('^')) return no_nic_named();
  entry.names.push_back(pattern);
  return {};
}

// `place`: what stands behind the backend's colon.
Result<Entry> new_entry(const Backend& backend, std::string_view place, bool has_colon) {
  Entry entry{.backend = &backend, .names = {}, .excludes = false};
  switch (backend.place) {
    case Place::kNicOrNone:
      if (!has_colon) return entry;
      break;
    case Place::kServers: entry.names.push_back(place); return entry;
    case Place::kNics:
    case Place::kNicsTogether: break;
  }
  entry.excludes = !has_colon || place == "auto" || place.starts_with('^');
  if (!has_colon || place == "auto") return entry;
  if (entry.excludes) place.remove_prefix(1);
  if (auto added = add_nic(entry, place); !added) return tl::unexpected(added.error());
  return entry;
}

// An item without a colon is a backend's name, or one more NIC of the entry before it.
Result<void> take_item(std::vector<Entry>& entries, std::string_view item) {
  const std::size_t colon = item.find(':');
  const bool has_colon = colon != std::string_view::npos;
  const std::string_view word = trimmed(item.substr(0, colon));
  const bool continues = !has_colon && word != kFormerTcp && find_backend(word) == nullptr;
  if (continues) {
    if (entries.empty()) {
      return fail(ErrorKind::kInvalid, "the link '" + std::string(item) + "' has no backend", std::string(kSyntaxFix));
    }
    if (entries.back().backend->place == Place::kServers || entries.back().names.empty()) {
      return item.empty() ? no_nic_named()
                          : fail(ErrorKind::kInvalid, "the link '" + std::string(item) + "' has no backend",
                                 std::string(kSyntaxFix));
    }
    return add_nic(entries.back(), item);
  }
  if (auto known = check_backend(word); !known) return known;
  auto entry = new_entry(*find_backend(word), has_colon ? trimmed(item.substr(colon + 1)) : "", has_colon);
  if (!entry) return tl::unexpected(entry.error());
  entries.push_back(*std::move(entry));
  return {};
}

Result<std::vector<Entry>> parse(std::string_view grammar) {
  grammar = trimmed(grammar);
  if (grammar == "auto") grammar = "gloo:auto";
  std::vector<Entry> entries;
  while (true) {
    const std::size_t comma = grammar.find(',');
    if (auto taken = take_item(entries, trimmed(grammar.substr(0, comma))); !taken)
      return tl::unexpected(taken.error());
    if (comma == std::string_view::npos) return entries;
    grammar.remove_prefix(comma + 1);
  }
}

// All usable NICs but the excluded ones. Those whose addresses no router knows, and loopback, only if nothing else is left.
Result<std::vector<const Nic*>> usable_but(std::span<const std::string_view> excluded, bool loopback_allowed,
                                           std::span<const Nic> nics) {
  std::vector<const Nic*> chosen, link_local;
  const Nic* loopback = nullptr;
  for (const Nic& nic : nics) {
    const auto excludes = [&](std::string_view pattern) { return matches(pattern, nic); };
    if (!is_usable(nic) || std::ranges::any_of(excluded, excludes)) continue;
    if (nic.loopback) {
      loopback = &nic;
    } else if (nic.running && !is_local_bridge(nic)) {
      (is_link_local(nic) ? link_local : chosen).push_back(&nic);
    }
  }
  if (chosen.empty()) chosen = link_local;
  if (chosen.empty() && loopback != nullptr && loopback_allowed) chosen.push_back(loopback);
  if (chosen.empty()) {
    return fail(ErrorKind::kUnavailable, "no network interface can reach other machines; there are: " + listed(nics),
                "bring one up, give it an address, or name one in DEFT_LINKS");
  }
  return chosen;
}

tl::unexpected<Error> no_such_nic(std::string_view pattern, std::span<const Nic> nics) {
  const std::string name(pattern.starts_with('=') ? pattern.substr(1) : pattern);
  std::string what = "no network interface '" + name + "'; there are: " + listed(nics);
  std::vector<std::string_view> known;
  for (const Nic& nic : nics) known.emplace_back(nic.name);
  return fail(ErrorKind::kInvalid, std::move(what), did_you_mean(name, known));
}

// Why a NIC that was asked for cannot be a link; empty if it can.
std::string unusable_because(const Nic& nic, bool loopback_allowed) {
  if (!nic.up) return "is down";
  if (nic.address.empty()) return "has no address";
  if (nic.loopback && !loopback_allowed) return "is the loopback, which cannot reach other machines";
  return {};
}

Result<std::vector<const Nic*>> named(std::string_view pattern, bool loopback_allowed, std::span<const Nic> nics) {
  std::vector<const Nic*> found;
  const auto exact = std::ranges::find(nics, pattern, &Nic::name);
  for (const Nic& nic : nics) {
    if (exact != nics.end() ? &nic == &*exact : matches(pattern, nic)) found.push_back(&nic);
  }
  if (found.empty()) return no_such_nic(pattern, nics);
  std::vector<const Nic*> chosen;
  std::string reasons;
  for (const Nic* nic : found) {
    const std::string reason = unusable_because(*nic, loopback_allowed);
    if (reason.empty()) chosen.push_back(nic);
    if (!reason.empty())
      reasons += (reasons.empty() ? "" : "; ") + ("the network interface " + nic->name) + " " + reason;
  }
  if (chosen.empty()) {
    return fail(ErrorKind::kUnavailable, reasons + "; there are: " + listed(nics), "choose another one in DEFT_LINKS");
  }
  return chosen;
}

Result<void> append(std::vector<LinkSpec>& specs, LinkSpec spec) {
  if (std::ranges::find(specs, spec.name(), &LinkSpec::name) != specs.end()) {
    return fail(ErrorKind::kInvalid, "the link " + spec.name() + " is given twice", "name each link once");
  }
  specs.push_back(std::move(spec));
  return {};
}

Result<void> append_servers(std::vector<LinkSpec>& specs, std::string_view text, bool loopback_allowed) {
  const auto servers = split_servers(text);
  if (!servers) return tl::unexpected(servers.error());
  for (const std::string& server : *servers) {
    if (is_loopback_address(server) && !loopback_allowed) {
      return fail(ErrorKind::kInvalid,
                  "the parameter server " + server +
                      " is this machine's loopback, which other "
                      "machines cannot reach",
                  "give its address in a network that all nodes reach");
    }
  }
  return append(specs, LinkSpec{"ps", std::string(text), ""});
}

// The NICs that an entry of the list stands for.
Result<std::vector<const Nic*>> nics_of(const Entry& entry, bool loopback_allowed, std::span<const Nic> nics) {
  if (entry.excludes) return usable_but(entry.names, loopback_allowed, nics);
  std::vector<const Nic*> all;
  for (const std::string_view pattern : entry.names) {
    auto chosen = named(pattern, loopback_allowed, nics);
    if (!chosen) return chosen;
    all.insert(all.end(), chosen->begin(), chosen->end());
  }
  return all;
}

// One link over all of them: its place is "eth0+eth1". A second one would share them, so there is none.
Result<void> append_together(std::vector<LinkSpec>& specs, const std::string& backend,
                             std::span<const Nic* const> nics) {
  const auto same = std::ranges::find(specs, backend, &LinkSpec::backend);
  LinkSpec& spec =
      same == specs.end() ? specs.emplace_back(LinkSpec{std::string(backend), "", nics.front()->address}) : *same;
  for (const Nic* nic : nics) {
    if (("+" + spec.interface + "+").find("+" + nic->name + "+") != std::string::npos)
      return fail(ErrorKind::kInvalid, "the link " + backend + ":" + nic->name + " is given twice",
                  "name each NIC once");
    spec.interface += (spec.interface.empty() ? "" : "+") + nic->name;
  }
  return {};
}

Result<void> append_entry(std::vector<LinkSpec>& specs, const Entry& entry, bool loopback_allowed,
                          std::span<const Nic> nics) {
  const std::string backend(entry.backend->name);
  const bool chooses_itself = entry.backend->place == Place::kNicOrNone && entry.names.empty() && !entry.excludes;
  if (chooses_itself) return append(specs, LinkSpec{backend, "", ""});
  if (entry.backend->place == Place::kServers) return append_servers(specs, entry.names.front(), loopback_allowed);
  if (entry.backend->place == Place::kNicsTogether && entry.excludes && entry.names.empty())
    return append(specs, LinkSpec{backend, "", ""});
  auto chosen = nics_of(entry, loopback_allowed, nics);
  if (!chosen) return tl::unexpected(chosen.error());
  if (entry.backend->place == Place::kNicsTogether) return append_together(specs, backend, *chosen);
  for (const Nic* nic : *chosen) {
    if (auto added = append(specs, LinkSpec{backend, nic->name, nic->address}); !added) return added;
  }
  return {};
}

}  // namespace

Result<std::vector<LinkSpec>> choose_links(std::string_view grammar, bool loopback_allowed, std::span<const Nic> nics) {
  auto entries = parse(grammar);
  if (!entries) return tl::unexpected(entries.error());
  std::vector<LinkSpec> specs;
  for (const Entry& entry : *entries) {
    if (auto added = append_entry(specs, entry, loopback_allowed, nics); !added) return tl::unexpected(added.error());
  }
  return specs;
}

Result<void> check_links(std::string_view grammar) {
  const auto entries = parse(grammar);
  if (!entries && entries.error().kind != ErrorKind::kInvalid) return {};  // a backend that this build lacks
  if (!entries) return tl::unexpected(entries.error());
  for (const Entry& entry : *entries) {
    if (entry.backend->place != Place::kServers) continue;
    if (const auto servers = split_servers(entry.names.front()); !servers) return tl::unexpected(servers.error());
  }
  return {};
}

Result<std::vector<LinkSpec>> resolve_links(std::string_view grammar, bool loopback_allowed) {
  auto specs = choose_links(grammar, loopback_allowed, list_nics());
  if (!specs) return tl::unexpected(specs.error().in("DEFT_LINKS=" + std::string(grammar)));
  return specs;
}

std::string describe(std::span<const LinkSpec> specs) {
  std::string text;
  for (const LinkSpec& spec : specs) {
    text += (text.empty() ? "" : ", ") + spec.name();
    if (!spec.address.empty()) text += " (" + spec.address + ")";
  }
  return text;
}

}  // namespace deft::link
