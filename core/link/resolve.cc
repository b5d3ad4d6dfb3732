// From DEFT_LINKS to NICs.
#include <algorithm>
#include <array>
#include <numeric>

#include "core/link/nics.h"

namespace deft::link {
namespace {

constexpr std::array<std::string_view, 1> kBackends = {"gloo"};
constexpr std::array<std::string_view, 3> kPlannedBackends = {"nccl", "mpi", "ps"};
// Bridges of container and machine managers: they exist on every node, with the same address, and lead nowhere.
constexpr std::array<std::string_view, 5> kLocalBridges = {"docker", "virbr", "podman", "cni", "lxcbr"};

constexpr std::string_view kSyntaxFix = "write for instance gloo:eth0,gloo:eth1 or auto";

// One entry of the list: `names` has several only in an exclusion (`^lo,docker`) or in `gloo:eth0,eth1`.
struct Entry {
  std::string_view backend;
  std::vector<std::string_view> names;
  bool excludes = false;
};

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

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
  return std::ranges::any_of(kLocalBridges, [&](std::string_view prefix) { return nic.name.starts_with(prefix); });
}

// An `=` asks for the exact name; without it a NIC of just this name is meant, or else all whose names begin so.
bool matches(std::string_view pattern, const Nic& nic) {
  return pattern.starts_with('=') ? nic.name == pattern.substr(1) : nic.name.starts_with(pattern);
}

Result<void> check_backend(std::string_view backend, std::string_view item) {
  if (std::ranges::find(kBackends, backend) != kBackends.end()) return {};
  if (std::ranges::find(kPlannedBackends, backend) != kPlannedBackends.end()) {
    return fail(ErrorKind::kUnavailable, "links of the backend '" + std::string(backend) + "' are not in this build",
                std::string(kSyntaxFix));
  }
  return fail(ErrorKind::kInvalid, "'" + std::string(item) + "' names no link backend that exists (gloo)",
              std::string(kSyntaxFix));
}

Result<std::vector<Entry>> parse(std::string_view grammar) {
  std::vector<Entry> entries;
  while (true) {
    const std::size_t comma = grammar.find(',');
    std::string_view item = trim(grammar.substr(0, comma));
    const std::size_t colon = item.find(':');
    if (colon != std::string_view::npos) {
      const std::string_view backend = item.substr(0, colon);
      if (auto known = check_backend(backend, item); !known) return tl::unexpected(known.error());
      entries.push_back({.backend = backend, .names = {}, .excludes = false});
      item = trim(item.substr(colon + 1));
      entries.back().excludes = item.starts_with('^');
      if (entries.back().excludes) item.remove_prefix(1);
    } else if (entries.empty()) {
      return fail(ErrorKind::kInvalid, "the link '" + std::string(item) + "' has no backend", std::string(kSyntaxFix));
    }
    if (item.empty() || item == "=" || item.starts_with('^')) {
      return fail(ErrorKind::kInvalid, "a link without a NIC's name", std::string(kSyntaxFix));
    }
    entries.back().names.push_back(item);
    if (comma == std::string_view::npos) return entries;
    grammar.remove_prefix(comma + 1);
  }
}

// All usable NICs but the excluded ones; loopback only if nothing else is left.
Result<std::vector<const Nic*>> usable_but(std::span<const std::string_view> excluded, bool loopback_allowed,
                                           std::span<const Nic> nics) {
  std::vector<const Nic*> chosen;
  const Nic* loopback = nullptr;
  for (const Nic& nic : nics) {
    const auto excludes = [&](std::string_view pattern) { return matches(pattern, nic); };
    if (!is_usable(nic) || std::ranges::any_of(excluded, excludes)) continue;
    if (nic.loopback) {
      loopback = &nic;
    } else if (nic.running && !is_local_bridge(nic)) {
      chosen.push_back(&nic);
    }
  }
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
  const auto distance = [&](const Nic& nic) { return edit_distance(name, nic.name); };
  const auto closest = std::ranges::min_element(nics, {}, distance);
  const bool similar = closest != nics.end() && distance(*closest) <= 1 + name.size() / 4;
  return fail(ErrorKind::kInvalid, std::move(what), similar ? "did you mean " + closest->name + "?" : "");
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

Result<void> append(std::vector<LinkSpec>& specs, std::string_view backend, std::span<const Nic* const> nics) {
  for (const Nic* nic : nics) {
    LinkSpec spec{std::string(backend), nic->name, nic->address};
    if (std::ranges::find(specs, spec.name(), &LinkSpec::name) != specs.end()) {
      return fail(ErrorKind::kInvalid, "the link " + spec.name() + " is given twice", "name each NIC once");
    }
    specs.push_back(std::move(spec));
  }
  return {};
}

}  // namespace

Result<std::vector<LinkSpec>> choose_links(std::string_view grammar, bool loopback_allowed, std::span<const Nic> nics) {
  grammar = trim(grammar);
  std::vector<Entry> entries = {{.backend = "gloo", .names = {}, .excludes = true}};
  if (grammar != "auto") {
    auto parsed = parse(grammar);
    if (!parsed) return tl::unexpected(parsed.error());
    entries = *std::move(parsed);
  }
  std::vector<LinkSpec> specs;
  for (const Entry& entry : entries) {
    if (entry.excludes) {
      auto chosen = usable_but(entry.names, loopback_allowed, nics);
      if (!chosen) return tl::unexpected(chosen.error());
      if (auto added = append(specs, entry.backend, *chosen); !added) return tl::unexpected(added.error());
      continue;
    }
    for (const std::string_view pattern : entry.names) {
      auto chosen = named(pattern, loopback_allowed, nics);
      if (!chosen) return tl::unexpected(chosen.error());
      if (auto added = append(specs, entry.backend, *chosen); !added) return tl::unexpected(added.error());
    }
  }
  return specs;
}

Result<std::vector<LinkSpec>> resolve_links(std::string_view grammar, bool loopback_allowed) {
  auto specs = choose_links(grammar, loopback_allowed, list_nics());
  if (!specs) return tl::unexpected(specs.error().in("DEFT_LINKS=" + std::string(grammar)));
  return specs;
}

}  // namespace deft::link
