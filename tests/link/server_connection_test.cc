// A ps link's connection to a server, which a test plays or a process runs.
#include "core/link/ps/connection.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "tests/link/server_process.h"

namespace deft::link::ps_backend {
namespace {

constexpr TimeUs kSilenceUs = 60'000'000;

class Server {
 public:
  Server() : router_(context_, zmq::socket_type::router) { router_.bind("tcp://127.0.0.1:*"); }

  [[nodiscard]] std::string address() const {
    return router_.get(zmq::sockopt::last_endpoint).substr(std::string_view("tcp://").size());
  }
  PsHeader hear() {
    zmq::message_t first, payload;
    EXPECT_TRUE(router_.recv(link_) && router_.recv(first) && router_.recv(payload));
    return header_of(first).value_or(PsHeader());
  }
  void say(PsHeader header, Kind kind, std::string_view payload) {
    header.kind = kind;
    zmq::message_t to;
    to.copy(link_);
    router_.send(to, zmq::send_flags::sndmore);
    router_.send(zmq::buffer(&header, sizeof header), zmq::send_flags::sndmore);
    router_.send(zmq::buffer(payload), zmq::send_flags::none);
  }
  // What was said is sent before.
  void end() {
    router_.close();
    context_.close();
  }

 private:
  zmq::context_t context_;
  zmq::socket_t router_;
  zmq::message_t link_;
};

// Until the kernel or ZeroMQ has told of something.
void wait_for(zmq::pollitem_t item) {
  std::array<zmq::pollitem_t, 1> items{item};
  zmq::poll(items, std::chrono::minutes(1));
}

std::optional<ServerConnection::Message> next_of(ServerConnection& connection) {
  wait_for(connection.messages());
  return connection.receive();
}

TEST(ServerConnection, AResultThatCameJustBeforeTheServersEndIsTaken) {
  Server server;
  zmq::context_t context;
  ServerConnection connection(context, CurveKey(), server.address(), 0, kSilenceUs);
  connection.hello({}, Secret{}, "link");
  server.say(server.hear(), Kind::kWelcome, "");
  while (!connection.welcome()) ASSERT_FALSE(next_of(connection));
  std::array<std::byte, 4> data{};
  connection.push({.kind = Kind::kPush, .bytes = data.size()}, {}, data);
  server.say(server.hear(), Kind::kResult, "mine");
  server.end();
  while (!connection.ended()) {  // the engine may have looked for messages just before
    wait_for(connection.events());
    connection.check_alive();
  }
  const auto result = connection.receive();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->payload.to_string(), "mine");
  EXPECT_EQ(connection.unanswered(), 0u);
}

// Only whole messages tell heartbeats of ZeroMQ from a message that does not end.
TEST(ServerConnection, WhateverTheLinkDoesAWholeMessagePassesEachWayNowAndThen) {
  constexpr TimeUs kPingUs = ServerConnection::kPingUs;
  Server server;
  zmq::context_t context;
  ServerConnection connection(context, CurveKey(), server.address(), 0, kSilenceUs);
  connection.hello({.kind = Kind::kHello}, Secret{}, "link");
  EXPECT_EQ(server.hear().kind, Kind::kHello);
  for (const TimeUs now_us : {kPingUs, kPingUs + 1, 2 * kPingUs - 1, 2 * kPingUs}) connection.ping(now_us);
  connection.push({.kind = Kind::kPush}, {}, {});
  for (const Kind kind : {Kind::kPing, Kind::kPing, Kind::kPush}) EXPECT_EQ(server.hear().kind, kind);
}

TEST(ServerConnection, AServerAnswersAPing) {
  const testing::ServerProcess server;
  zmq::context_t context;
  ServerConnection connection(context, CurveKey(), server.address(), 0, kSilenceUs);
  connection.hello({.kind = Kind::kHello, .nodes = 2}, Secret{}, "link");
  while (connection.absent().empty()) ASSERT_FALSE(next_of(connection)) << "the server tells who is there";
  zmq::pollitem_t messages = connection.messages();
  ASSERT_EQ(zmq::poll(&messages, 1, std::chrono::milliseconds(0)), 0);
  connection.ping(ServerConnection::kPingUs);
  EXPECT_EQ(zmq::poll(&messages, 1, std::chrono::minutes(1)), 1);
  EXPECT_FALSE(connection.receive());
  EXPECT_FALSE(connection.ended());
}

}  // namespace
}  // namespace deft::link::ps_backend
