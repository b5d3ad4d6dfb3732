#include "tests/link/server_process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>

#include "core/link/ps/parameter_server.h"

namespace deft::link::testing {
namespace {

[[noreturn]] void serve(const std::string& listen, const std::string& key_file, int tell_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  auto server = ps_backend::ParameterServer::open(
      {.listen = listen, .key_file = key_file, .log = {}, .on_turn = {}, .grace_us = 0});
  if (!server) _exit(1);
  const std::string& address = (*server)->address();
  if (write(tell_fd, address.data(), address.size()) < 0) _exit(1);
  close(tell_fd);
  (*server)->run(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  _exit(0);
}

std::unique_ptr<ServerProcess> shared[2];

class Servers final : public ::testing::Environment {
 public:
  void SetUp() override {
    for (auto& server : shared) server = std::make_unique<ServerProcess>();
  }
  void TearDown() override {
    for (auto& server : shared) server.reset();
  }
};

[[maybe_unused]] const auto* const environment = ::testing::AddGlobalTestEnvironment(new Servers);

}  // namespace

ServerProcess::ServerProcess(const std::string& listen, const std::string& key_file) {
  int ends[2];
  if (pipe(ends) != 0) return;
  pid_ = fork();
  if (pid_ == 0) serve(listen, key_file, ends[1]);
  close(ends[1]);
  std::array<char, 128> text{};
  const auto length = read(ends[0], text.data(), text.size());
  close(ends[0]);
  if (length > 0) address_.assign(text.data(), static_cast<std::size_t>(length));
  EXPECT_NE(address_, "") << "the parameter server on " << listen << " did not start";
}

ServerProcess::~ServerProcess() {
  if (pid_ <= 0) return;
  send(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ServerProcess::send(int signal) const { kill(pid_, signal); }

const std::string& shared_servers() {
  static const std::string addresses = shared[0]->address() + "+" + shared[1]->address();
  return addresses;
}

}  // namespace deft::link::testing
