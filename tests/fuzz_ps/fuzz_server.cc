// A parameter server that lives through all inputs, and three connections for each input that follow no rule. After each input the
// server must still serve a sound link of two nodes.
//
// The input is a list of acts. The first byte of an act chooses the act (byte % 8), the connection (byte / 8 % 3) and how many bytes of
// the header are changed (byte / 32):
//   0 hello of a node of one link   1 push   2 taken   3 any kind   4 frames of any bytes   5 hangs up   others: reads its answers
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/signals.h"
#include "core/link/ps/parameter_server.h"
#include "core/link/secret.h"
#include "core/model/dtype.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/die.h"
#include "tests/fuzz/reached.h"

namespace {

using namespace deft::link::ps_backend;  // NOLINT(google-build-using-namespace): the server
using deft::fuzz::Bytes;
using deft::fuzz::die;

constexpr int kAnswerMs = 20'000;
constexpr int kLingerMs = 1'000;  // so that the last messages of a connection reach the server
constexpr std::size_t kMostActs = 64;
constexpr std::size_t kFloats = 16;
constexpr auto kKinds = static_cast<std::size_t>(Kind::kTaken);  // they count from 1

deft::fuzz::Reached& kinds_sent() {
  static deft::fuzz::Reached kinds("messages of a link to a parameter server", kKinds);
  return kinds;
}

class RunningServer {
 public:
  RunningServer() {
    ParameterServer::Options options;
    options.listen = "127.0.0.1:*";
    auto server = ParameterServer::open(std::move(options));
    if (!server) die(server.error().message());
    server_ = *std::move(server);
    thread_ = std::thread([this] { server_->run(stop_.get()); });
  }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;
  ~RunningServer() {
    const std::uint64_t one = 1;
    if (write(stop_.get(), &one, sizeof one) < 0) die("the server cannot be stopped");
    thread_.join();
  }
  [[nodiscard]] std::string endpoint() const { return "tcp://" + server_->address(); }

 private:
  const deft::Descriptor stop_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::unique_ptr<ParameterServer> server_;
  std::thread thread_;
};

struct Answer {
  PsHeader header;
  zmq::message_t payload;
};

class Connection {
 public:
  Connection(zmq::context_t& context, const std::string& endpoint) : dealer_(context, zmq::socket_type::dealer) {
    dealer_.set(zmq::sockopt::linger, kLingerMs);
    dealer_.set(zmq::sockopt::rcvtimeo, kAnswerMs);
    dealer_.connect(endpoint);
  }

  // A connection that the server does not read any more takes nothing; that is no fault.
  void send(const std::vector<std::vector<std::byte>>& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i) {
      const auto more = i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
      if (!dealer_.send(zmq::buffer(frames[i].data(), frames[i].size()), more | zmq::send_flags::dontwait)) return;
    }
  }
  void send(const PsHeader& header, std::vector<std::byte> payload) {
    const auto bytes = std::as_bytes(std::span(&header, 1));
    send({{bytes.begin(), bytes.end()}, std::move(payload)});
  }
  std::optional<Answer> receive(zmq::recv_flags flags) {
    zmq::message_t first;
    Answer answer;
    if (!dealer_.recv(first, flags)) return std::nullopt;
    if (!first.more() || !dealer_.recv(answer.payload) || answer.payload.more())
      die("an answer of other frames than two");
    const auto header = header_of(first);
    if (!header) die("an answer that is none");
    answer.header = *header;
    return answer;
  }
  // The next answer of this kind.
  Answer wait_for(Kind kind) {
    while (auto answer = receive(zmq::recv_flags::none)) {
      if (answer->header.kind == kind) return *std::move(answer);
      if (answer->header.kind == Kind::kFailed) die("a sound link failed: " + answer->payload.to_string());
    }
    die("the server does not answer");
  }

 private:
  zmq::socket_t dealer_;
};

PsHeader header_of_kind(Kind kind, std::uint32_t node) {
  PsHeader header;
  header.kind = kind;
  header.node = node;
  header.nodes = 2;
  return header;
}

PsHeader push_header(std::uint32_t node, std::uint64_t round) {
  PsHeader header = header_of_kind(Kind::kPush, node);
  header.round = round;
  header.bytes = header.total = kFloats * sizeof(float);
  header.dtype = static_cast<std::uint8_t>(deft::model::DType::kFloat32);
  header.op = static_cast<std::uint8_t>(deft::model::ReduceOp::kSum);
  return header;
}

std::vector<std::byte> floats(float value) {
  const std::vector<float> all(kFloats, value);
  const auto bytes = std::as_bytes(std::span(all));
  return {bytes.begin(), bytes.end()};
}

class HostileLinks {
 public:
  HostileLinks(zmq::context_t& context, std::string endpoint, std::string link, Bytes bytes)
      : context_(context), endpoint_(std::move(endpoint)), link_(std::move(link)), bytes_(bytes) {
    for (auto& connection : connections_) connection = std::make_unique<Connection>(context_, endpoint_);
  }

  // False: the input is used up.
  bool act() {
    if (bytes_.empty() || acts_++ == kMostActs) return false;
    const auto choice = bytes_.take<std::uint8_t>();
    const std::uint32_t which = choice / 8U % 3U;
    const unsigned changes = choice / 32U;
    auto& connection = connections_[which];
    switch (choice % 8) {
      case 0: say(*connection, header_of_kind(Kind::kHello, which), deft::link::with_text({}, link_), changes); break;
      case 1: say(*connection, push_header(which, pushes_[which]++), floats(1), changes); break;
      case 2: {
        PsHeader header = header_of_kind(Kind::kTaken, which);
        header.taken = bytes_.take<std::uint8_t>();
        say(*connection, header, {}, changes);
        break;
      }
      case 3: {
        const auto kind = static_cast<Kind>(bytes_.take<std::uint8_t>() % (kKinds + 2));
        say(*connection, header_of_kind(kind, which), bytes_.take_some(bytes_.take<std::uint8_t>()), changes);
        break;
      }
      case 4: {
        std::vector<std::vector<std::byte>> frames(1U + changes % 4U);
        for (auto& frame : frames) frame = bytes_.take_some(bytes_.take<std::uint8_t>());
        connection->send(frames);
        break;
      }
      case 5: connection = std::make_unique<Connection>(context_, endpoint_); break;
      default:
        while (connection->receive(zmq::recv_flags::dontwait)) continue;
    }
    return true;
  }

 private:
  void say(Connection& connection, PsHeader header, std::vector<std::byte> payload, unsigned changes) {
    bytes_.spoil(std::as_writable_bytes(std::span(&header, 1)), changes);
    if (header_of(zmq::message_t(&header, sizeof header)))
      kinds_sent().count(static_cast<std::size_t>(header.kind) - 1);
    connection.send(header, std::move(payload));
  }

  zmq::context_t& context_;
  const std::string endpoint_, link_;
  Bytes bytes_;
  std::size_t acts_ = 0;
  std::array<std::unique_ptr<Connection>, 3> connections_;
  std::array<std::uint64_t, 3> pushes_{};
};

void require_sound_link(zmq::context_t& context, const std::string& endpoint, const std::string& link) {
  std::array<Connection, 2> nodes{Connection(context, endpoint), Connection(context, endpoint)};
  for (std::uint32_t node = 0; node < 2; ++node)
    nodes[node].send(header_of_kind(Kind::kHello, node), deft::link::with_text({}, link));
  for (Connection& node : nodes) node.wait_for(Kind::kWelcome);
  for (std::uint32_t node = 0; node < 2; ++node) nodes[node].send(push_header(node, 0), floats(1));
  for (Connection& node : nodes) {
    const Answer result = node.wait_for(Kind::kResult);
    const auto expected = floats(2);
    if (result.payload.size() != expected.size() ||
        std::memcmp(result.payload.data(), expected.data(), expected.size()) != 0)
      die("a wrong sum");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const deft::AllSignalsBlocked until_the_end;  // libFuzzer's alarm would interrupt ZeroMQ
  static const RunningServer server;
  static zmq::context_t context(1);
  static std::uint64_t links = 0;  // no two inputs share a link
  const std::string link = "link-" + std::to_string(links++);
  HostileLinks hostile(context, server.endpoint(), link, Bytes({data, size}));
  while (hostile.act()) continue;
  require_sound_link(context, server.endpoint(), link + "-sound");
  return 0;
}
