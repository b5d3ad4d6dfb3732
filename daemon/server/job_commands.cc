#include "daemon/server/job_commands.h"

#include <sstream>

#include "core/base/text.h"
#include "core/ipc/wire.h"

namespace deft::daemon {
namespace {

using Answer = std::function<void(std::vector<std::byte>)>;

std::vector<std::byte> encoded(const Result<std::string>& done) {
  if (!done) {
    ipc::ErrorMessage refused;
    refused.error_kind = static_cast<std::uint32_t>(done.error().kind);
    return ipc::encode(refused, ipc::MessageKind::kError,
                       {readable(done.error().what, ipc::kMaxTextBytes), readable(done.error().fix, ipc::kMaxTextBytes),
                        readable(done.error().where, ipc::kMaxTextBytes)});
  }
  ipc::Text text;
  text.last = 1;
  return ipc::encode(text, ipc::MessageKind::kText, {*done});
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Result<void> answer_change(const ipc::Packet& packet, uid_t user, JobCommands& commands, const Answer& answer) {
  const auto message = ipc::decode<ipc::ChangeSettings>(packet.bytes, ipc::MessageKind::kChangeSettings, 2);
  if (!message) return tl::unexpected(message.error());
  if (auto ok = check_name(message->texts[0], ipc::kMaxJobNameBytes, "the job's name"); !ok)
    return tl::unexpected(ok.error());
  if (message->texts[1].size() > ipc::kMaxNameBytes)
    return fail(ErrorKind::kViolation, "settings of " + std::to_string(message->texts[1].size()) + " bytes");
  const auto change = sched::parse_settings_change(lines_of(message->texts[1]));
  const auto changed = change ? commands.change_settings(user, message->texts[0], *change)
                              : Result<void>(tl::unexpected(change.error()));
  answer(encoded(changed.map([] { return std::string("from the next step on"); })));
  return {};
}

Result<void> answer_trace(const ipc::Packet& packet, uid_t user, JobCommands& commands, const Answer& answer) {
  const auto message = ipc::decode<ipc::TraceRequest>(packet.bytes, ipc::MessageKind::kTrace, 2);
  if (!message) return tl::unexpected(message.error());
  const auto action = message->fixed.action;
  const std::string &job = message->texts[0], &folder = message->texts[1];
  if (action < ipc::TraceAction::kDump || action > ipc::TraceAction::kStop)
    return fail(ErrorKind::kViolation, "a request for a trace of an unknown kind");
  if (auto ok = check_text(job, ipc::kMaxJobNameBytes, "the job's name"); !ok) return tl::unexpected(ok.error());
  if (auto ok = check_text(folder, ipc::kMaxNameBytes, "the folder"); !ok) return tl::unexpected(ok.error());
  if ((action == ipc::TraceAction::kStart) != folder.starts_with('/'))
    return fail(ErrorKind::kViolation, "the folder of a trace must begin at the root");
  const std::uint32_t steps = action == ipc::TraceAction::kStart ? message->fixed.steps : 0;
  commands.trace(user, job, {action, folder, steps},
                 [answer](const Result<std::string>& path) { answer(encoded(path)); });
  return {};
}

}  // namespace

Result<void> answer_command(const ipc::Packet& packet, uid_t user, JobCommands& commands, const Answer& answer) {
  const auto header = ipc::decode_header(packet.bytes);
  if (!header) return tl::unexpected(header.error());
  return header->kind == ipc::MessageKind::kTrace ? answer_trace(packet, user, commands, answer)
                                                  : answer_change(packet, user, commands, answer);
}

}  // namespace deft::daemon
