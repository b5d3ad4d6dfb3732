// One question to the daemon of this node about a running job, and its answer.
//
//   const DaemonArguments given = split_arguments(arguments);     // flags such as --socket PATH, and other words
//   auto text = ask_daemon(config, ipc::encode(ipc::ChangeSettings{}, ipc::MessageKind::kChangeSettings, {job, "policy=p3"}));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tools/command.h"

namespace deft::tools {

struct DaemonArguments {
  std::vector<std::string> flags;
  std::vector<std::string> words;
};
DaemonArguments split_arguments(Arguments given);

// The error of a command that found no daemon at the default socket, with the daemons that deftrun has started for this user: they listen
// elsewhere. `socket`: the option of this name. Other errors stay as they are.
Error with_deftruns(Error error, const std::string& socket);

// The text of the answer, or the error that the daemon gives. Blocks for up to 10 s.
Result<std::string> ask_daemon(const Config& config, std::span<const std::byte> message);

}  // namespace deft::tools
