#include "tools/daemon_request.h"

#include <algorithm>

#include "core/base/clock.h"
#include "core/ipc/daemon_socket.h"
#include "core/ipc/wire.h"

namespace deft::tools {
namespace {

constexpr TimeUs kPatienceUs = 10'000'000;

Result<std::string> answer_in(const ipc::Packet& packet) {
  if (packet.bytes.empty()) return fail(ErrorKind::kLost, "the daemon closed the connection before it answered");
  const auto header = ipc::decode_header(packet.bytes);
  if (!header) return tl::unexpected(header.error());
  if (header->kind == ipc::MessageKind::kText) {
    auto text = ipc::decode<ipc::Text>(packet.bytes, ipc::MessageKind::kText, 1);
    if (!text) return tl::unexpected(text.error());
    return std::move(text->texts[0]);
  }
  const auto refused = ipc::decode<ipc::ErrorMessage>(packet.bytes, ipc::MessageKind::kError, 3);
  if (!refused) return tl::unexpected(refused.error());
  const auto kind = static_cast<ErrorKind>(refused->fixed.error_kind);
  return tl::unexpected(Error{kind, refused->texts[0], refused->texts[1], refused->texts[2]});
}

}  // namespace

DaemonArguments split_arguments(Arguments given) {
  DaemonArguments split;
  for (auto argument = given.begin(); argument != given.end(); ++argument) {
    if (!argument->starts_with("--")) {
      split.words.push_back(*argument);
      continue;
    }
    split.flags.push_back(*argument);
    const bool has_value = argument->find('=') != std::string::npos;
    if (!has_value && std::next(argument) != given.end()) split.flags.push_back(*++argument);
  }
  return split;
}

Result<std::string> ask_daemon(const Config& config, std::span<const std::byte> message) {
  auto daemon = ipc::connect_to_daemon(ipc::daemon_sockets(config.text("socket")));
  if (!daemon) return tl::unexpected(daemon.error());
  if (auto sent = daemon->channel.send(message); !sent) return tl::unexpected(sent.error());
  auto packet =
      daemon->channel.receive(MonotonicClock::now() + std::min<TimeUs>(config.seconds_us("timeout"), kPatienceUs));
  if (!packet) return tl::unexpected(packet.error().in("the daemon at " + daemon->path));
  return answer_in(*packet);
}

}  // namespace deft::tools
