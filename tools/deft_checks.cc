#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "core/ipc/channel.h"
#include "core/link/nics.h"
#include "tools/daemon_status.h"
#include "tools/findings.h"
#include "tools/installed.h"

namespace deft::tools {
namespace {

constexpr TimeUs kPatienceUs = 3'000'000;
constexpr std::size_t kKeyCharacters = 40;

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
  std::string text;
  for (const auto& link : *links) text += " " + link.name() + " (" + link.address + ")";
  return {Health::kOk, "links", option + " is" + text, ""};
}

struct Spoken {
  int status = -1;
  std::string text;
};

// The output of a command and its exit status.
Spoken ask(const std::string& command) {
  Spoken out;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 512> piece{};
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) out.text += piece.data();
  const int status = pclose(pipe);
  out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  while (!out.text.empty() && out.text.back() == '\n') out.text.pop_back();
  return out;
}

}  // namespace

Finding check_daemon(const Config& config) {
  const std::string path = ipc::socket_path(config.text("socket"));
  const auto status = query_daemon(path, kPatienceUs);
  if (!status && status.error().kind == ErrorKind::kUnavailable)
    return {Health::kWarn, "daemon", status.error().what,
            "deftrun starts private daemons by itself; for a shared one: systemctl start deftd"};
  if (!status) return {Health::kFail, "daemon", status.error().message(), "see its log: journalctl -u deftd"};
  const std::string version = status->value("version", std::string("of unknown version"));
  const std::string text = "deftd " + version + " at " + path;
  if (version != DEFT_VERSION)
    return {Health::kFail, "daemon", text + ", but this is deft " DEFT_VERSION,
            "install the same version for the daemon and the workers, and restart the daemon"};
  return {Health::kOk, "daemon", text, ""};
}

std::vector<Finding> check_links(const Config& config) {
  return {list_finding(link::list_nics()), resolved_finding(config.text("links"))};
}

Finding check_secret(const Config& config) {
  const std::string& path = config.text("secret_file");
  if (path.empty())
    return {Health::kOk, "secret", "none: control messages are not guarded; they are taken on " + config.text("listen"),
            ""};
  std::string key;
  if (std::ifstream in(path); !(in >> key) || key.size() != kKeyCharacters)
    return {Health::kFail, "secret", path + " holds no key of 40 characters", "make one: deft keygen >" + path};
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0)
    return {Health::kWarn, "secret", path + " can be read by everyone", "chmod o-r " + path};
  return {Health::kOk, "secret", path, ""};
}

Finding check_python() {
  const auto package = python_package();
  const std::string path = package.empty() ? std::string() : package.parent_path().string();
  const auto said =
      ask("PYTHONPATH=\"" + path +
          "${PYTHONPATH:+:$PYTHONPATH}\" python3 -c 'import deft; print(deft.__version__, deft.__file__)' 2>&1");
  const std::string last = said.text.substr(said.text.rfind('\n') + 1);
  if (said.status != 0)
    return {Health::kWarn, "python", "import deft: " + last, "in a tree: scripts/build, then . scripts/env.sh"};
  if (last.compare(0, last.find(' '), DEFT_VERSION) != 0)
    return {Health::kFail, "python", "the package deft is " + last + ", this is " DEFT_VERSION,
            "install the package of the same version"};
  return {Health::kOk, "python", "package deft " + last, ""};
}

}  // namespace deft::tools
