// deft set policy=NAME JOB: another policy for a running job, from its next step on. Run it on the node of rank 0.
#include <algorithm>
#include <cstdio>

#include "core/base/clock.h"
#include "core/ipc/daemon_socket.h"
#include "core/ipc/wire.h"
#include "tools/command.h"

namespace deft::tools {
namespace {

constexpr std::string_view kPolicy = "policy=";

Result<void> answered(const ipc::Packet& packet) {
  if (packet.bytes.empty()) return fail(ErrorKind::kLost, "the daemon closed the connection before it answered");
  const auto header = ipc::decode_header(packet.bytes);
  if (!header) return tl::unexpected(header.error());
  if (header->kind == ipc::MessageKind::kText) return {};
  const auto refused = ipc::decode<ipc::ErrorMessage>(packet.bytes, ipc::MessageKind::kError, 3);
  if (!refused) return tl::unexpected(refused.error());
  const auto kind = static_cast<ErrorKind>(refused->fixed.error_kind);
  return tl::unexpected(Error{kind, refused->texts[0], refused->texts[1], refused->texts[2]});
}

Result<void> set_policy(const Config& config, const std::string& job, const std::string& policy) {
  auto daemon = ipc::connect_to_daemon(ipc::daemon_sockets(config.text("socket")));
  if (!daemon) return tl::unexpected(daemon.error());
  auto sent = daemon->channel.send(ipc::encode(ipc::SetPolicy{}, ipc::MessageKind::kSetPolicy, {job, policy}));
  if (!sent) return sent;
  auto packet =
      daemon->channel.receive(MonotonicClock::now() + std::min<TimeUs>(config.seconds_us("timeout"), 10'000'000));
  if (!packet) return tl::unexpected(packet.error().in("the daemon at " + daemon->path));
  return answered(*packet);
}

}  // namespace

Result<int> run_set(Arguments given) {
  std::vector<std::string> flags, words;
  for (auto argument = given.begin(); argument != given.end(); ++argument) {
    if (!argument->starts_with("--")) {
      words.push_back(*argument);
      continue;
    }
    flags.push_back(*argument);
    if (argument->find('=') == std::string::npos && std::next(argument) != given.end()) flags.push_back(*++argument);
  }
  if (words.size() != 2 || !words[0].starts_with(kPolicy))
    return fail(ErrorKind::kInvalid, "usage: deft set policy=NAME JOB [--socket PATH]",
                "deft check-build lists the policies, deft status the jobs");
  const auto config = load_config(flags);
  if (!config) return tl::unexpected(config.error());
  const std::string policy = words[0].substr(kPolicy.size());
  if (auto ok = set_policy(*config, words[1], policy); !ok) return tl::unexpected(ok.error());
  std::printf("job %s: policy %s from the next step on\n", words[1].c_str(), policy.c_str());
  return kExitOk;
}

}  // namespace deft::tools
