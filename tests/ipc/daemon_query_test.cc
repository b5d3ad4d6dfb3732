// What a client makes of answers that no daemon gives.
#include "core/ipc/daemon_query.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <thread>

#include "core/ipc/message_socket.h"
#include "core/ipc/wire.h"
#include "tests/ipc/scratch.h"

namespace deft::ipc {
namespace {

constexpr TimeUs kMinuteUs = 60'000'000;

// Hears one question, and answers it by `answer`.
class FakeDaemon {
 public:
  explicit FakeDaemon(std::function<void(MessageSocket& client)> answer)
      : listener_(Listener::bind(path()).value()), thread_([this, answer = std::move(answer)] {
          pollfd waiting{listener_.descriptor(), POLLIN, 0};
          poll(&waiting, 1, -1);
          auto client = listener_.accept();
          ASSERT_TRUE(client && *client);
          ASSERT_TRUE((*client)->receive(MonotonicClock::now() + kMinuteUs));
          answer(**client);
        }) {}
  ~FakeDaemon() { thread_.join(); }
  [[nodiscard]] std::string path() const { return scratch_.file("deftd.sock"); }

 private:
  test::Scratch scratch_;
  Listener listener_;
  std::thread thread_;
};

TEST(DaemonQuery, PiecesOfTheStatusThatDoNotEndMeetTheDeadline) {
  const FakeDaemon daemon([](MessageSocket& client) {
    const auto piece = encode(Text{}, MessageKind::kText, {""});
    while (true) {
      const auto sent = client.send(piece);
      if (!sent && sent.error().kind != ErrorKind::kExhausted) return;  // the client has gone
    }
  });
  const auto status = query_status(daemon.path(), 100'000);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::kTimeout);
}

TEST(DaemonQuery, AnErrorOfAKindThatIsNotKnownIsAnInternalOne) {
  for (const std::uint32_t kind : {0U, 9U, 256U + 1U}) {
    const FakeDaemon daemon([kind](MessageSocket& client) {
      ErrorMessage message;
      message.error_kind = kind;
      ASSERT_TRUE(client.send(encode(message, MessageKind::kError, {"what", "fix", "where"})));
    });
    const auto answer =
        ask_daemon(daemon.path(), encode(ChangeSettings{}, MessageKind::kChangeSettings, {"", ""}), kMinuteUs);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().kind, ErrorKind::kInternal) << kind;
    EXPECT_EQ(answer.error().message(), "where: what (fix)");
  }
}

}  // namespace
}  // namespace deft::ipc
