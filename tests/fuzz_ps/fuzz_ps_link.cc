// The ps link of node 0 of two, against a parameter server that follows no rule. Whatever it says, the link's requests end, well or with
// an error, and nothing else happens.
//
// The input is a list of the server's acts, of which the server does one after each message, or while none comes. The first byte chooses
// the act (byte % 8) and how many bytes of the header are changed (byte / 32):
//   0 nothing   1 who is present   2 welcome   3 the result of the oldest push   4 failed   5 ping   6 any kind   7 frames of any bytes
// When the input is used up, the server says that the link has failed.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/signals.h"
#include "core/link/link.h"
#include "core/link/ps/wire.h"
#include "core/link/rendezvous.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/die.h"
#include "tests/fuzz/reached.h"
#include "tests/link/stores.h"

namespace {

using namespace deft::link::ps_backend;  // NOLINT(google-build-using-namespace): the protocol
using deft::fuzz::Bytes;
using deft::fuzz::die;
using deft::link::WorkRequest;

constexpr int kPauseMs = 10;  // without a message, until the next act
constexpr std::size_t kMostActs = 64;
constexpr deft::TimeUs kOpenUs = 60'000'000;  // never reached: the server says that the link has failed
constexpr auto kKinds = static_cast<std::size_t>(Kind::kTaken);  // they count from 1

deft::fuzz::Reached& kinds_sent() {
  static deft::fuzz::Reached kinds("messages of a parameter server to a link", kKinds);
  return kinds;
}

class HostileServer {
 public:
  explicit HostileServer(Bytes bytes) : bytes_(bytes), router_(context_, zmq::socket_type::router) {
    router_.set(zmq::sockopt::linger, 0);
    router_.bind("tcp://127.0.0.1:*");
    address_ = router_.get(zmq::sockopt::last_endpoint).substr(std::string_view("tcp://").size());
    thread_ = std::thread([this] { run(); });
  }
  HostileServer(const HostileServer&) = delete;
  HostileServer& operator=(const HostileServer&) = delete;
  ~HostileServer() {
    const std::uint64_t one = 1;
    if (write(stop_.get(), &one, sizeof one) < 0) die("the server cannot be stopped");
    thread_.join();
  }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void run() {
    while (true) {
      std::array<zmq::pollitem_t, 2> items{
          {{router_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, stop_.get(), ZMQ_POLLIN, 0}}};
      zmq_poll(items.data(), static_cast<int>(items.size()), link_.empty() || over_ ? -1 : kPauseMs);
      if (items[1].revents != 0) return;
      if (items[0].revents != 0) hear();
      if (!link_.empty() && !over_) act();
    }
  }

  void hear() {
    zmq::message_t identity, first, payload;
    if (!router_.recv(identity) || !router_.recv(first) || !router_.recv(payload)) die("half a message of the link");
    link_ = identity.to_string();
    const auto header = header_of(first);
    if (!header || payload.more()) die("the link says what cannot be read");
    if (header->kind == Kind::kPush) pushes_.push_back(*header);
  }

  void act() {
    PsHeader header = pushes_.empty() ? PsHeader() : pushes_.front();
    header.recipe_bytes = 0;
    if (bytes_.empty() || acts_++ == kMostActs) {
      over_ = true;
      header.kind = Kind::kFailed;
      return say(header, {}, 0);
    }
    const auto choice = bytes_.take<std::uint8_t>();
    const unsigned changes = choice / 32U;
    switch (choice % 8) {
      case 0: return;
      case 1: header.kind = Kind::kPresent; return say(header, bytes_.take_some(bytes_.take<std::uint8_t>()), changes);
      case 2: header.kind = Kind::kWelcome; return say(header, {}, changes);
      case 3: return say_result(header, changes);
      case 4:
        header.kind = Kind::kFailed;
        header.error = bytes_.take<std::uint8_t>();
        return say(header, bytes_.take_some(bytes_.take<std::uint8_t>()), changes);
      case 5: header.kind = Kind::kPing; return say(header, {}, changes);
      case 6:
        header.kind = static_cast<Kind>(bytes_.take<std::uint8_t>() % (kKinds + 2));
        return say(header, bytes_.take_some(bytes_.take<std::uint16_t>() % 2048), changes);
      default: {
        std::vector<std::vector<std::byte>> frames(1U + changes % 4U);
        for (auto& frame : frames) frame = bytes_.take_some(bytes_.take<std::uint8_t>());
        return send(frames);
      }
    }
  }

  // The result is as long as the link expects: nothing for a segment that it owns. Its own codes and the other node's are equally long.
  void say_result(PsHeader header, unsigned changes) {
    header.kind = Kind::kResult;
    if (!pushes_.empty()) pushes_.pop_front();
    say(header, std::vector<std::byte>(header.owner == 0 ? 0 : std::min<std::size_t>(header.bytes, kMaxSegmentBytes)),
        changes);
  }

  void say(PsHeader header, std::vector<std::byte> payload, unsigned changes) {
    bytes_.spoil(std::as_writable_bytes(std::span(&header, 1)), changes);
    if (header_of(zmq::message_t(&header, sizeof header)))
      kinds_sent().count(static_cast<std::size_t>(header.kind) - 1);
    const auto bytes = std::as_bytes(std::span(&header, 1));
    send({{bytes.begin(), bytes.end()}, std::move(payload)});
  }

  void send(const std::vector<std::vector<std::byte>>& frames) {
    router_.send(zmq::buffer(link_), zmq::send_flags::sndmore);
    for (std::size_t i = 0; i < frames.size(); ++i)
      router_.send(zmq::buffer(frames[i].data(), frames[i].size()),
                   i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }

  Bytes bytes_;
  std::size_t acts_ = 0;
  zmq::context_t context_{1};
  zmq::socket_t router_;
  std::string address_;
  const deft::Descriptor stop_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::string link_;             // ZeroMQ's identity; empty: it has not come yet
  std::deque<PsHeader> pushes_;  // that have no result
  bool over_ = false;
  std::thread thread_;
};

deft::link::LinkGroup group_of(const deft::link::LinkSpec& spec) {
  deft::link::LinkGroup group;
  group.nodes = 2;
  group.prefix = "fuzz";
  group.store = std::make_shared<deft::link::testing::MemoryStore>();
  group.connect_deadline_us = deft::MonotonicClock::now() + kOpenUs;
  const auto other = deft::link::with_text({}, spec.interface);
  if (!group.store->set(deft::link::meeting_key(group, "ps", 1), other)) die("the store takes nothing");
  return group;
}

// One request of each kind: a sum, codes whose rest this node keeps, blocks of both nodes, a broadcast of the other node, and codes that
// both nodes add.
struct Requests {
  std::vector<float> floats = std::vector<float>(64);
  std::vector<std::byte> codes = std::vector<std::byte>(256), blocks = std::vector<std::byte>(128),
                         whole = std::vector<std::byte>(100), shown = std::vector<std::byte>(256);

  deft::Result<void> submit_to(deft::link::Link& link) {
    namespace model = deft::model;
    auto* const bytes = reinterpret_cast<std::byte*>(floats.data());
    std::vector<WorkRequest> all;
    all.push_back(
        WorkRequest::all_reduce(bytes, floats.size(), model::DType::kFloat32, model::ReduceOp::kSum, all.size()));
    all.push_back(encoded());
    all.push_back(WorkRequest::all_gather(blocks.data(), {64, 64}, 2));
    all.push_back(WorkRequest::broadcast(whole.data(), whole.size(), 1, 3));
    all.push_back(shown_to_all());
    for (WorkRequest& request : all)
      if (auto ok = link.submit(std::move(request)); !ok) return ok;
    return {};
  }

 private:
  WorkRequest shown_to_all() {
    auto request = WorkRequest::reduce_by_all(shown.data(), shown.size(), [](const deft::link::OwnedSegment& segment) {
      if (segment.inputs.size() != 2 || segment.first + segment.data.size() > 256) die("a segment of other elements");
    });
    request.block = 64;
    request.id = 4;
    return request;
  }
  WorkRequest encoded() {
    auto request =
        WorkRequest::all_reduce(codes.data(), codes.size(), deft::model::DType::kUInt8, deft::model::ReduceOp::kSum, 1);
    request.block = 64;
    request.owner_stage = [](const deft::link::OwnedSegment& segment) {
      if (!segment.inputs.empty()) std::copy_n(segment.inputs.back(), segment.data.size(), segment.data.begin());
    };
    request.encoded.emplace();
    request.encoded->block_values = 256;
    request.encoded->owner_keeps_rest = true;
    request.encoded->recipe = [](deft::link::Range) { return std::vector<std::byte>(16); };
    return request;
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const deft::AllSignalsBlocked until_the_end;  // libFuzzer's alarm would interrupt ZeroMQ
  HostileServer server(Bytes({data, size}));
  const deft::link::LinkSpec spec{"ps", server.address(), ""};
  Requests requests;  // outlives the link, which writes there
  auto link = deft::link::open_link(spec, group_of(spec));
  if (!link || !requests.submit_to(**link)) return 0;
  for (auto done = (*link)->poll(); done && *done; done = (*link)->poll()) continue;
  return 0;
}
