#include "core/link/backends.h"
#include "core/link/curve/curve_key.h"
#include "core/link/encryption_rule.h"
#include "core/link/factories.h"
#include "core/link/nics.h"
#include "core/link/servers.h"
#include "tools/daemon_status.h"
#include "tools/findings.h"
#include "tools/installed.h"
#include "tools/program_output.h"

namespace deft::tools {
namespace {

constexpr TimeUs kPatienceUs = 3'000'000;

std::string nic_text(const link::Nic& nic) {
  std::string text = nic.name + " (" + (nic.address.empty() ? "no address" : nic.address);
  if (!nic.up) text += ", down";
  if (nic.up && !nic.running) text += ", no carrier";
  if (nic.loopback) text += ", loopback";
  return text + ")";
}

Finding list_finding(const std::vector<link::Nic>& nics) {
  std::string text;
  bool usable = false;
  for (const auto& nic : nics) {
    text += (text.empty() ? "" : ", ") + nic_text(nic);
    usable = usable || (nic.up && nic.running && !nic.loopback && !nic.address.empty());
  }
  if (nics.empty()) return {Health::kFail, "NICs", "none, not even loopback", "bring one up: ip link set lo up"};
  if (!usable)
    return {Health::kWarn, "NICs", text, "only loopback can be used: fine for workers of this machine, not for others"};
  return {Health::kOk, "NICs", text, ""};
}

Finding resolved_finding(const std::string& grammar) {
  const auto links = link::resolve_links(grammar, true);
  const std::string option = "DEFT_LINKS=" + grammar;
  if (!links) return {Health::kFail, "links", option + ": " + links.error().what, links.error().fix};
  return {Health::kOk, "links", option + " is " + link::describe(*links), ""};
}

// The backends of this build, and why the others are missing.
Finding backends_finding() {
  std::string here, missing;
  for (const auto& backend : link::backends()) {
    std::string& text = backend.built ? here : missing;
    text += (text.empty() ? "" : ", ") + std::string(backend.name);
  }
  if (!missing.empty()) here += "; not in this build: " + missing + " (deft check-build says why)";
  return {Health::kOk, "backends", here, ""};
}

// Checks if MPI links find their library. A build without them needs none.
Finding mpi_finding() {
  const auto version = link::mpi_backend::library_version();
  if (!version) return {Health::kWarn, "MPI", version.error().what, version.error().fix};
  return {Health::kOk, "MPI", *version, ""};
}

// Checks if workers of this machine can use NCCL links. A build without them needs no library.
Finding nccl_finding() {
  const auto version = link::nccl_backend::usable();
  if (!version) return {Health::kWarn, "NCCL", version.error().what, version.error().fix};
  return {Health::kOk, "NCCL", *version, ""};
}

// The parameter servers that DEFT_LINKS names, if any.
std::vector<Finding> server_findings(const std::string& grammar) {
  std::vector<Finding> findings;
  const auto links = link::resolve_links(grammar, true);
  if (!links) return findings;
  for (const auto& spec : *links) {
    if (spec.backend != "ps") continue;
    const auto servers = link::split_servers(spec.interface);
    for (const std::string& server : *servers) {
      if (connect_error(server) == 0) {
        findings.push_back({Health::kOk, "server", server + " takes connections", ""});
      } else {
        findings.push_back({Health::kFail, "server", "no parameter server answers at " + server,
                            "start it there (deftd server --listen " + server + "), or correct DEFT_LINKS"});
      }
    }
  }
  return findings;
}

// What jobs say of the links if encrypt_gradients is on.
std::vector<Finding> encryption_findings(const Config& config) {
  const auto links = link::resolve_links(config.text("links"), true);
  if (config.text("encrypt_gradients") != "on" || !links) return {};
  const bool has_key = !config.text("secret_file").empty();
  std::string unable;
  bool needs_key = false;  // also on one machine
  for (const auto& spec : *links) {
    const auto cause = link::clear_cause(link::find_backend(spec.backend)->encryption, has_key, true);
    if (cause == link::ClearCause::kBackend) unable += (unable.empty() ? "" : ", ") + spec.name();
    needs_key |= cause == link::ClearCause::kNoKey;
  }
  if (!unable.empty())
    return {{Health::kFail, "encryption", unable + " cannot encrypt gradients, and encrypt_gradients is on",
             "use gloo, tcp or ps links, or set DEFT_ENCRYPT_GRADIENTS=off"}};
  if (has_key) return {{Health::kOk, "encryption", "all links encrypt gradients", ""}};
  return {{needs_key ? Health::kFail : Health::kWarn, "encryption",
           needs_key ? "without a key, ps links cannot encrypt gradients, and encrypt_gradients is on"
                     : "without a key of the daemons, only jobs of one machine can encrypt gradients",
           "give all daemons and parameter servers one key (secret_file; deft keygen makes one)"}};
}

}  // namespace

Finding check_daemon(const Config& config) {
  const auto status = query_daemon(config.text("socket"), kPatienceUs);
  if (!status && status.error().kind == ErrorKind::kUnavailable)
    return {Health::kWarn, "daemon", status.error().what,
            "deftrun starts private daemons by itself; for a shared one: systemctl start deftd"};
  if (!status) return {Health::kFail, "daemon", status.error().message(), "see its log: journalctl -u deftd"};
  const std::string version = text_of(status->json, "version", "of unknown version");
  const std::string text = "deftd " + version + " at " + status->path;
  if (version != DEFT_VERSION)
    return {Health::kFail, "daemon", text + ", but this is deft " DEFT_VERSION,
            "install the same version for the daemon and the workers, and restart the daemon"};
  return {Health::kOk, "daemon", text, ""};
}

std::vector<Finding> check_links(const Config& config) {
  std::vector<Finding> all{list_finding(link::list_nics()), backends_finding(), resolved_finding(config.text("links"))};
  if (link::find_backend("mpi")->built) all.push_back(mpi_finding());
  if (link::find_backend("nccl")->built) all.push_back(nccl_finding());
  for (auto& finding : server_findings(config.text("links"))) all.push_back(std::move(finding));
  for (auto& finding : encryption_findings(config)) all.push_back(std::move(finding));
  return all;
}

Finding check_secret(const Config& config) {
  const std::string& path = config.text("secret_file");
  if (path.empty())
    return {Health::kOk, "secret", "none: control messages are not guarded; they are taken on " + config.text("listen"),
            ""};
  if (const auto key = link::CurveKey::read(path); !key)
    return {Health::kFail, "secret", key.error().what, key.error().fix};
  if (const std::string readers = link::other_readers(path); !readers.empty())
    return {Health::kWarn, "secret", path + " can be read by " + readers,
            "give it to the user who runs deftd, alone: chmod 0400 " + path};
  return {Health::kOk, "secret", path, ""};
}

Finding check_python() {
  const std::string path = python_path().string();
  const auto said =
      output_of("PYTHONPATH=\"" + path +
                "${PYTHONPATH:+:$PYTHONPATH}\" python3 -c 'import deft; print(deft.__version__, deft.__file__)' 2>&1");
  const std::string last = said.text.substr(said.text.rfind('\n') + 1);
  if (said.status != 0)
    return {Health::kWarn, "python", "import deft: " + last,
            "in a tree: scripts/build, then . scripts/env.sh; of a wheel: activate its environment"};
  if (last.compare(0, last.find(' '), DEFT_VERSION) != 0)
    return {Health::kFail, "python", "the package deft is " + last + ", this is " DEFT_VERSION,
            "install the package of the same version"};
  return {Health::kOk, "python", "package deft " + last, ""};
}

}  // namespace deft::tools
