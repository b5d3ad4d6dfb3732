#include "daemon/server/hello.h"

#include <algorithm>
#include <string>

#include "core/base/text.h"
#include "core/ipc/wire.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {
namespace {

constexpr std::size_t kMaxVersionBytes = 64;

tl::unexpected<Error> too_many(const char* field, std::uint32_t value, std::uint32_t most, const char* fix) {
  return fail(ErrorKind::kInvalid,
              std::string(field) + " is " + std::to_string(value) + ", more than " + std::to_string(most), fix);
}

Result<void> check_place(const ipc::Hello& hello) {
  if (hello.world > ipc::kMaxWorld)
    return too_many("the world's size", hello.world, ipc::kMaxWorld, "check WORLD_SIZE");
  if (hello.local_size > wire::kMaxLocalSize)
    return too_many("the local size", hello.local_size, wire::kMaxLocalSize, "check LOCAL_WORLD_SIZE");
  if (hello.world == 0 || hello.rank >= hello.world)
    return fail(ErrorKind::kInvalid,
                "rank " + std::to_string(hello.rank) + " does not exist in a world of " + std::to_string(hello.world),
                "check RANK and WORLD_SIZE");
  if (hello.local_size == 0 || hello.local_size > hello.world || hello.local_rank >= hello.local_size)
    return fail(ErrorKind::kInvalid,
                "local rank " + std::to_string(hello.local_rank) + " of " + std::to_string(hello.local_size) +
                    " on a node does not fit a world of " + std::to_string(hello.world),
                "check LOCAL_RANK and LOCAL_WORLD_SIZE");
  return {};
}

// One `name=value` a line.
Result<void> check_settings(std::string settings) {
  std::replace(settings.begin(), settings.end(), '\n', ' ');
  return check_text(settings, kMaxSettingsBytes, "the job's settings");
}

Result<void> check_texts(const WorkerHello& hello) {
  if (auto ok = check_name(hello.job, ipc::kMaxJobNameBytes, "the job's name"); !ok) {
    ok.error().fix = "set DEFT_JOB";
    return ok;
  }
  if (auto ok = check_text(hello.leader, ipc::kMaxJobNameBytes, "the leader's address"); !ok) return ok;
  if (auto ok = check_settings(hello.settings); !ok) return ok;
  return check_text(hello.version, kMaxVersionBytes, "the library's version");
}

}  // namespace

Result<WorkerHello> read_hello(const ipc::Packet& packet) {
  auto message = ipc::decode<ipc::Hello>(packet.bytes, ipc::MessageKind::kHello, 4);
  if (!message) return tl::unexpected(message.error());
  if (auto ok = check_place(message->fixed); !ok) return tl::unexpected(ok.error());
  const auto& fixed = message->fixed;
  auto& texts = message->texts;
  WorkerHello hello{std::move(texts[0]), std::move(texts[1]), std::move(texts[2]), std::move(texts[3]),
                    fixed.rank,          fixed.world,         fixed.local_rank,    fixed.local_size};
  if (auto ok = check_texts(hello); !ok) return tl::unexpected(ok.error());
  return hello;
}

}  // namespace deft::daemon
