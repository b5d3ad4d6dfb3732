#include "core/ipc/daemon_query.h"

#include <optional>
#include <string_view>

#include "core/ipc/daemon_socket.h"
#include "core/ipc/remote_error.h"
#include "core/ipc/wire.h"

namespace deft::ipc {
namespace {

constexpr std::size_t kMaxStatusBytes = 64U << 20;

struct StatusRequest {
  MessageHeader header;
};

// A daemon that turns a client away closes the connection, perhaps before the question comes. Its reason can be received then.
Result<void> ask(MessageSocket& channel, std::span<const std::byte> question) {
  auto sent = channel.send(question);
  return !sent && sent.error().kind == ErrorKind::kLost ? Result<void>() : sent;
}

// The reason, if the daemon refuses to answer.
std::optional<Error> refusal_in(const Packet& packet) {
  if (packet.bytes.empty())
    return Error{ErrorKind::kLost, "the daemon closed the connection before it answered", "", {}};
  const auto header = decode_header(packet.bytes);
  if (!header) return header.error();
  if (header->kind != MessageKind::kError) return std::nullopt;
  auto refused = read_error(packet.bytes);
  return refused ? std::move(refused->error) : refused.error();
}

// Appends a TEXT message's piece; true when it was the last one.
Result<bool> append_piece(const Packet& packet, std::string& out) {
  if (auto refusal = refusal_in(packet)) return tl::unexpected(std::move(*refusal));
  auto text = decode<Text>(packet.bytes, MessageKind::kText, 0);
  if (!text) return tl::unexpected(text.error());
  const auto* piece = reinterpret_cast<const char*>(text->tail.data());
  std::string_view words(piece, text->tail.size());
  while (!words.empty() && words.back() == '\0') words.remove_suffix(1);
  out.append(words);
  if (out.size() > kMaxStatusBytes) return fail(ErrorKind::kViolation, "the daemon's status does not end");
  return text->fixed.last != 0;
}

Result<std::string> answer_in(const Packet& packet) {
  if (auto refusal = refusal_in(packet)) return tl::unexpected(std::move(*refusal));
  auto text = decode<Text>(packet.bytes, MessageKind::kText, 1);
  if (!text) return tl::unexpected(text.error());
  return std::move(text->texts[0]);
}

}  // namespace

Result<StatusText> query_status(const std::string& socket, TimeUs patience_us) {
  auto daemon = connect_to_daemon(daemon_sockets(socket));
  if (!daemon) return tl::unexpected(daemon.error());
  auto& [channel, path] = *daemon;
  if (auto asked = ask(channel, encode(StatusRequest{}, MessageKind::kStatus)); !asked)
    return tl::unexpected(asked.error());
  const TimeUs deadline = MonotonicClock::now() + patience_us;
  StatusText status{{}, path};
  for (bool last = false; !last;) {
    // receive() gives what has come, also after the deadline: pieces that never end would hold the caller for ever.
    if (MonotonicClock::now() > deadline)
      return fail(ErrorKind::kTimeout, "the status of the daemon at " + path + " does not end");
    auto packet = channel.receive(deadline);
    if (!packet) return tl::unexpected(packet.error().in("the status of the daemon at " + path));
    auto piece = append_piece(*packet, status.text);
    if (!piece) return tl::unexpected(piece.error());
    last = *piece;
  }
  return status;
}

Result<std::string> ask_daemon(const std::string& socket, std::span<const std::byte> message, TimeUs patience_us) {
  auto daemon = connect_to_daemon(daemon_sockets(socket));
  if (!daemon) return tl::unexpected(daemon.error());
  if (auto asked = ask(daemon->channel, message); !asked) return tl::unexpected(asked.error());
  auto packet = daemon->channel.receive(MonotonicClock::now() + patience_us);
  if (!packet) return tl::unexpected(packet.error().in("the daemon at " + daemon->path));
  return answer_in(*packet);
}

}  // namespace deft::ipc
