// A daemon that lives through all inputs, and one hostile worker for each. After each it must still answer `deft status`.
#include <glog/logging.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/ipc/wire.h"
#include "daemon/server/server.h"
#include "tests/fuzz/die.h"
#include "tests/fuzz_session/hostile_worker.h"

namespace {

using namespace deft;
using deft::fuzz::die;

constexpr TimeUs kAnswerUs = 10'000'000;

class Daemon {
 public:
  Daemon() {
    FLAGS_minloglevel = google::GLOG_FATAL;
    FLAGS_logtostderr = true;
    auto config = Config::load(flags(), {}, Audience::kAll);
    if (!config) die(config.error().message());
    config_ = std::make_unique<Config>(std::move(*config));
    thread_ = std::thread([this] { serve(); });
    for (int i = 0; i < 500 && access(path_.c_str(), F_OK) != 0; ++i) usleep(10'000);
  }
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;
  ~Daemon() {
    reactor_.stop();
    thread_.join();
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  [[nodiscard]] std::vector<std::string> flags() const {
    const std::string port = std::to_string(20'000 + getpid() % 10'000);
    return {"--socket=" + path_, "--listen=127.0.0.1:" + port, "--links=gloo:lo", "--timeout=1s",
            "--memory-limit=64MB"};
  }
  void serve() {
    ::setenv("STATE_DIRECTORY", "/proc/none", 1);  // no traces of the jobs that fail
    auto server = daemon::Server::open(reactor_, *config_);
    if (!server) die(server.error().message());
    reactor_.run();
  }
  const std::string path_ = "/tmp/deft-fuzz-" + std::to_string(getpid()) + ".sock";
  std::unique_ptr<Config> config_;
  daemon::Reactor reactor_;
  std::thread thread_;
};

void require_answer(const std::string& path) {
  auto channel = ipc::MessageSocket::connect(path);
  if (!channel) die("the daemon takes no client: " + channel.error().message());
  if (!channel->send(ipc::encode(ipc::Text{}, ipc::MessageKind::kStatus))) die("the daemon takes no message");
  auto packet = channel->receive(MonotonicClock::now() + kAnswerUs);
  if (!packet || packet->bytes.empty()) die("the daemon does not answer");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Daemon daemon;
  {
    fuzz::HostileWorker worker(daemon.path(), {data, size});
    while (worker.act()) continue;
  }
  require_answer(daemon.path());
  return 0;
}
