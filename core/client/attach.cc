#include "core/client/attach.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/client/daemon_pulse.h"
#include "core/ipc/daemon_socket.h"
#include "core/ipc/remote_error.h"
#include "core/ipc/wire.h"

namespace deft::client {
namespace {

// The daemon has a timeout to gather the workers and another one to open the links, and knows who is missing. It may have to ask the
// leader. So its error comes before ours, as long as it lives.
constexpr TimeUs patience_us(TimeUs timeout_us) {
  return 2 * timeout_us + std::clamp<TimeUs>(timeout_us / 2, 500'000, 5'000'000);
}

constexpr std::size_t kWelcomeDescriptors = 2;
constexpr TimeUs kLinksPatienceUs = 5'000'000;  // they were sent together with WELCOME

std::string who(const Placement& placement) {
  return "rank " + std::to_string(placement.rank) + " of " + std::to_string(placement.size) + " (" +
         (placement.source.empty() ? "no launcher's variables are set" : placement.source) + ")";
}

// The daemon has another working directory.
std::string absolute(const std::string& folder) {
  std::error_code error;
  const auto path = folder.empty() ? std::filesystem::path() : std::filesystem::absolute(folder, error);
  return error ? folder : path.string();
}

// What this worker was told about the job, for the daemon to follow.
std::string job_settings(const Config& config) {
  std::string lines;
  for (const auto& spec : option_table()) {
    if (spec.scope == Scope::kProcess || config.source(spec.name) == ConfigSource::kDefault) continue;
    const std::string& text = config.text(spec.name);
    lines += std::string(spec.name) + "=" + (spec.name == "trace" ? absolute(text) : text) + "\n";
  }
  return lines;
}

// The daemon does not answer before the job runs. Whether it lives is seen by what it reads.
Result<ipc::Packet> receive_while_it_lives(ipc::MessageSocket& channel, const std::string& path, TimeUs timeout_us) {
  const TimeUs until_us = MonotonicClock::now() + patience_us(timeout_us);
  DaemonPulse pulse(timeout_us / 2);
  std::uint64_t beats = 1;
  while (true) {
    const TimeUs now_us = MonotonicClock::now();
    auto packet = channel.receive(std::min(until_us, now_us + pulse.interval_us()));
    if (packet || packet.error().kind != ErrorKind::kTimeout || MonotonicClock::now() >= until_us) return packet;
    if (!channel.has_unread()) {
      ++beats;
      static_cast<void>(channel.send(ipc::encode(ipc::Text{}, ipc::MessageKind::kText)));  // the next look tells
    }
    if (const auto silent_us = pulse.look(beats, MonotonicClock::now()))
      return fail(ErrorKind::kLost,
                  "the daemon on this node hangs: it has read nothing on " + path + " for " +
                      std::to_string(*silent_us / 1000) + " ms",
                  "see its log; if it is stopped (SIGSTOP, a debugger), continue it or start it again");
  }
}

Result<ipc::Packet> wait_for_welcome(ipc::MessageSocket& channel, const std::string& path, TimeUs timeout_us) {
  auto packet = receive_while_it_lives(channel, path, timeout_us);
  if (!packet && packet.error().kind == ErrorKind::kTimeout)
    return fail(ErrorKind::kTimeout, "the deftd on " + path + " took the connection but did not answer in time",
                "see its log; raise DEFT_TIMEOUT if workers start far apart");
  if (!packet) return packet;
  if (packet->bytes.empty())
    return fail(ErrorKind::kLost, "the deftd on " + path + " closed the connection", "see its log");
  auto header = ipc::decode_header(packet->bytes);
  if (!header) return tl::unexpected(header.error());
  if (header->kind != ipc::MessageKind::kError) return packet;
  auto refusal = ipc::read_error(packet->bytes);
  return tl::unexpected(refusal ? refusal->error : refusal.error());
}

Result<std::vector<AnnouncedLink>> read_links(ipc::MessageSocket& channel, std::uint32_t count) {
  std::vector<AnnouncedLink> links;
  while (links.size() < count) {
    auto packet = channel.receive(MonotonicClock::now() + kLinksPatienceUs);
    if (!packet) return tl::unexpected(packet.error());
    auto message = ipc::decode<ipc::LinkMessage>(packet->bytes, ipc::MessageKind::kLink, 4);
    if (!message) return tl::unexpected(message.error());
    auto& texts = message->texts;
    links.push_back({message->fixed.link, {texts[0], texts[1], texts[2]}, texts[3], message->fixed.encrypts != 0});
  }
  return links;
}

Result<World> read_world(const ipc::Decoded<ipc::Welcome>& welcome, const Placement& placement) {
  const auto& fixed = welcome.fixed;
  if (fixed.world != placement.size || welcome.tail.size() != fixed.world * sizeof(std::uint32_t))
    return fail(ErrorKind::kMismatch, "the daemon welcomes to a job of " + std::to_string(fixed.world) +
                                          " workers, this one has " + std::to_string(placement.size));
  World world{placement.rank, placement.size, placement.local_rank, placement.local_size, fixed.node, fixed.nodes, {}};
  world.node_of.resize(fixed.world);
  std::memcpy(world.node_of.data(), welcome.tail.data(), welcome.tail.size());
  for (const auto node : world.node_of)
    if (node >= fixed.nodes) return fail(ErrorKind::kViolation, "the daemon's table of nodes makes no sense");
  if (world.node_of[world.rank] != fixed.node)
    return fail(ErrorKind::kViolation, "the daemon's table of nodes contradicts itself");
  return world;
}

Result<Attachment> take_welcome(ipc::MessageSocket channel, ipc::Packet packet, const Placement& placement) {
  auto welcome = ipc::decode<ipc::Welcome>(packet.bytes, ipc::MessageKind::kWelcome, 0);
  if (!welcome) return tl::unexpected(welcome.error());
  auto world = read_world(*welcome, placement);
  if (!world) return tl::unexpected(world.error());
  if (packet.descriptors.size() != kWelcomeDescriptors)
    return fail(ErrorKind::kViolation,
                "the daemon passed " + std::to_string(packet.descriptors.size()) + " descriptors instead of 2");
  auto segment = shm::Segment::map(std::move(packet.descriptors[0]), shm::kControlSegmentBytes);
  if (!segment) return tl::unexpected(segment.error());
  auto view = shm::ControlSegment::open(*segment);
  if (!view) return tl::unexpected(view.error());
  if (view->header().daemon_epoch != welcome->fixed.daemon_epoch)
    return fail(ErrorKind::kViolation, "the shared memory is not of the daemon that passed it");
  auto daemon_bell = shm::Doorbell::adopt(std::move(packet.descriptors[1]));
  if (!daemon_bell) return tl::unexpected(daemon_bell.error());
  auto own_bell = shm::Doorbell::create();
  if (!own_bell) return tl::unexpected(own_bell.error());
  auto links = read_links(channel, welcome->fixed.links);
  if (!links) return tl::unexpected(links.error());
  return Attachment{std::move(channel),
                    std::move(*segment),
                    *view,
                    std::move(*daemon_bell),
                    std::move(*own_bell),
                    std::move(*world),
                    static_cast<TimeUs>(welcome->fixed.timeout_us),
                    welcome->fixed.spin_us,
                    std::move(*links),
                    welcome->fixed.daemon_links};
}

}  // namespace

Result<Attachment> attach(const Config& config, const Placement& placement) {
  const std::string where = "attach " + who(placement);
  auto daemon = ipc::connect_to_daemon(ipc::daemon_sockets(config.text("socket")));
  if (!daemon) return tl::unexpected(daemon.error().in(where));
  ipc::MessageSocket& channel = daemon->channel;
  channel.limit_sending(config.seconds_us("timeout"));
  ipc::Hello hello;
  hello.rank = placement.rank;
  hello.world = placement.size;
  hello.local_rank = placement.local_rank;
  hello.local_size = placement.local_size;
  const auto bytes = ipc::encode(hello, ipc::MessageKind::kHello,
                                 {config.text("job"), placement.leader, job_settings(config), kVersion});
  if (auto sent = channel.send(bytes); !sent && sent.error().kind != ErrorKind::kLost)
    return tl::unexpected(sent.error().in(where));  // a daemon that refused at once has said why; read that
  auto packet = wait_for_welcome(channel, daemon->path, config.seconds_us("timeout"));
  if (!packet) return tl::unexpected(packet.error().in(where));
  auto attachment = take_welcome(std::move(channel), std::move(*packet), placement);
  if (!attachment) return tl::unexpected(attachment.error().in(where));
  attachment->job = config.text("job");
  attachment->socket = daemon->path;
  attachment->opens_by_us = MonotonicClock::now() + attachment->timeout_us;
  return attachment;
}

}  // namespace deft::client
