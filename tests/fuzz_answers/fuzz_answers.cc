// What a daemon answers to tools, from any bytes: it is read within its bounds and shown without a command for the terminal, or it becomes
// an error of a kind that there is. No descriptor stays open.
//
// The first byte of the input chooses the question (byte % 2): the status, or a command. Behind it is a list of packets, with which the
// daemon answers before it closes. The first byte of a packet chooses it (byte % 7):
//   0 a piece of text   1 the last piece   2 an error   3 any bytes   4 any bytes behind a sound header
//   5 the last piece, with a descriptor   6 more bytes than a message may have
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/descriptor.h"
#include "core/base/text.h"
#include "core/ipc/address.h"
#include "core/ipc/daemon_query.h"
#include "core/ipc/wire.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/die.h"
#include "tests/fuzz/reached.h"
#include "tests/ipc/scratch.h"
#include "tools/daemon_status.h"

namespace {

using deft::Descriptor;
using deft::Error;
using deft::fuzz::Bytes;
using deft::fuzz::die;
using deft::fuzz::Reached;
using namespace deft::ipc;  // NOLINT(google-build-using-namespace): the messages

constexpr std::size_t kPacketKinds = 7, kOutcomes = 9, kMostPackets = 16, kMostText = 4096;
constexpr deft::TimeUs kPatienceUs = 60'000'000;

struct Said {
  std::vector<std::byte> bytes;
  bool with_descriptor = false;
};

std::vector<std::byte> text_packet(Bytes& bytes, bool last) {
  const auto some = bytes.take_some(bytes.take<std::uint16_t>() % kMostText);
  const std::string_view text(reinterpret_cast<const char*>(some.data()), some.size());
  return encode(Text{.header = {}, .last = last ? 1U : 0U}, MessageKind::kText, {text});
}

std::vector<std::byte> error_packet(Bytes& bytes) {
  ErrorMessage message;
  message.error_kind = bytes.take<std::uint8_t>();
  const auto what = bytes.take_some(bytes.take<std::uint8_t>());
  return encode(message, MessageKind::kError,
                {std::string_view(reinterpret_cast<const char*>(what.data()), what.size()), "fix", "where"});
}

std::vector<std::byte> headed_packet(Bytes& bytes) {
  const auto kind = static_cast<MessageKind>(bytes.take<std::uint8_t>());
  const auto body = bytes.take_some(bytes.take<std::uint8_t>());
  struct Header {
    MessageHeader header;
  };
  return encode(Header{}, kind, {}, body);
}

Said next_packet(Bytes& bytes) {
  static Reached packets("packets of a daemon to tools", kPacketKinds);
  const auto kind = bytes.take<std::uint8_t>() % kPacketKinds;
  packets.count(kind);
  switch (kind) {
    case 0: return {text_packet(bytes, false)};
    case 1: return {text_packet(bytes, true)};
    case 2: return {error_packet(bytes)};
    case 3: return {bytes.take_some(bytes.take<std::uint8_t>())};
    case 4: return {headed_packet(bytes)};
    case 5: return {text_packet(bytes, true), true};
    default: return {std::vector<std::byte>(kMaxMessageBytes + 1)};
  }
}

// False: the other side is gone.
bool send_packet(int client, const Said& said, int null_device) {
  iovec piece{const_cast<std::byte*>(said.bytes.data()), said.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (said.with_descriptor) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &null_device, sizeof null_device);
  }
  ssize_t sent = 0;
  do {
    sent = sendmsg(client, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent >= 0;
}

class Daemon {
 public:
  Daemon() : listener_(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)), null_(open("/dev/null", O_RDONLY)) {
    const auto address = UnixAddress::of(path());
    if (!address || bind(listener_.get(), address->get(), address->bytes()) != 0 || listen(listener_.get(), 1) != 0)
      die("cannot listen on " + path());
  }
  [[nodiscard]] std::string path() const { return scratch_.file("deftd.sock"); }

  // Hears one question, and answers it.
  void serve(const std::vector<Said>& answer) const {
    Descriptor client;
    do {
      client = Descriptor(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    } while (!client.valid() && errno == EINTR);
    std::vector<char> question(kMaxMessageBytes);
    while (recv(client.get(), question.data(), question.size(), 0) < 0 && errno == EINTR) continue;
    for (const Said& said : answer)
      if (!send_packet(client.get(), said, null_.get())) return;
  }

 private:
  deft::test::Scratch scratch_;
  Descriptor listener_, null_;
};

// The lowest free descriptor tells whether one has stayed open below it.
int lowest_free() {
  const Descriptor here(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return here.get();
}

void require_shown(const deft::tools::DaemonStatus& status) {
  std::string text = deft::tools::describe_status(status.json, status.path);
  if (!text.ends_with('\n')) die("the last line has no end");
  std::erase(text, '\n');
  if (deft::has_control_characters(text)) die("a daemon commands the terminal");
}

// Which of kOutcomes it came to.
std::size_t outcome_of(const Error& error) {
  if (to_string(error.kind) == "unknown") die("an error of a kind that there is not");
  return static_cast<std::size_t>(error.kind);
}

std::size_t ask_for_status(const std::string& path) {
  const auto status = deft::tools::query_daemon(path, kPatienceUs);
  if (!status) return outcome_of(status.error());
  require_shown(*status);
  return 0;
}

std::size_t ask_for_change(const std::string& path) {
  const auto question = encode(ChangeSettings{}, MessageKind::kChangeSettings, {"job", "policy=p3"});
  const auto answer = ask_daemon(path, question, kPatienceUs);
  return answer ? 0 : outcome_of(answer.error());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Daemon daemon;
  static Reached outcomes("outcomes of questions to a daemon", kOutcomes);
  Bytes bytes({data, size});
  const bool for_status = bytes.take<std::uint8_t>() % 2 == 0;
  std::vector<Said> answer;
  while (answer.size() < kMostPackets && !bytes.empty()) answer.push_back(next_packet(bytes));
  const int free_before = lowest_free();
  std::thread server([&] { daemon.serve(answer); });
  outcomes.count(for_status ? ask_for_status(daemon.path()) : ask_for_change(daemon.path()));
  server.join();
  if (lowest_free() != free_before) die("a descriptor has stayed open");
  return 0;
}
