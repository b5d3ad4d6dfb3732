// An HTTP server whose thread gets no memory for a while. This program has an operator new of its own.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "core/base/descriptor.h"
#include "daemon/http/http_server.h"

namespace {

std::atomic<bool> no_memory = false;
std::atomic<int> refusals = 0;

bool on_http_thread() {
  std::array<char, 16> name{};
  return pthread_getname_np(pthread_self(), name.data(), name.size()) == 0 &&
         std::string_view(name.data()) == "deft-http";
}

}  // namespace

// Not inlined: the compiler would take malloc and free for a mismatch with new and delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (no_memory && on_http_thread()) {
    ++refusals;
    throw std::bad_alloc();
  }
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace deft::daemon {
namespace {

Descriptor connect_to_server(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return client;
}

std::string answer_of(const std::string& address) {
  const Descriptor client = connect_to_server(address);
  const timeval most{60, 0};
  setsockopt(client.get(), SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
  constexpr std::string_view kRequest = "GET / HTTP/1.0\r\n\r\n";
  EXPECT_EQ(send(client.get(), kRequest.data(), kRequest.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kRequest.size()));
  std::array<char, 4096> answer{};
  const ssize_t got = read(client.get(), answer.data(), answer.size());
  return {answer.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

// Whether the server's thread waits, which it first does for a client.
bool http_thread_sleeps() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream in(task.path() / "stat");
    std::string line;
    if (std::getline(in, line) && line.find("(deft-http) S") != std::string::npos) return true;
  }
  return false;
}

void answer_here(const std::string&, const HttpServer::Answer& answer) { answer({.body = "here\n"}); }

TEST(HttpServer, AThreadThatHasNoMemoryForAClientTakesTheNextOne) {
  const auto server = HttpServer::open("127.0.0.1:0");
  ASSERT_TRUE(server) << server.error().message();
  (*server)->start(answer_here);
  while (!http_thread_sleeps()) std::this_thread::yield();
  const int before = refusals;
  no_memory = true;
  while (refusals == before) connect_to_server((*server)->address());
  no_memory = false;
  EXPECT_TRUE(answer_of((*server)->address()).ends_with("here\n"));
}

TEST(HttpServer, AThreadThatHasNoMemoryToWaitForClientsTriesItAgain) {
  const auto server = HttpServer::open("127.0.0.1:0");
  ASSERT_TRUE(server) << server.error().message();
  const int before = refusals;
  no_memory = true;
  (*server)->start(answer_here);
  while (refusals == before) connect_to_server((*server)->address());
  no_memory = false;
  EXPECT_TRUE(answer_of((*server)->address()).ends_with("here\n"));
}

}  // namespace
}  // namespace deft::daemon
