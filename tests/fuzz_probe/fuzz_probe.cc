// The store of `deft probe`, and two connections for each input that follow no rule. After each input the store must still
// keep and give back what a sound rank sets.
//
// The input is a list of acts. The first byte of an act chooses the act (byte % 4), the connection (byte / 4 % 2), and in
// act 3 how many frames there are (byte / 8):
//   0 sets a key   1 asks for a key   2 says another word   3 frames of any bytes
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

#include "core/base/clock.h"
#include "core/base/signals.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/die.h"
#include "tests/fuzz/reached.h"
#include "tools/probe_store.h"

namespace {

using deft::fuzz::Bytes;
using deft::fuzz::die;
using deft::tools::ProbeStore;

constexpr deft::TimeUs kAnswerUs = 20'000'000;
constexpr int kLingerMs = 1'000;  // so that the last messages of a connection reach the store
constexpr std::size_t kMostActs = 64;
constexpr std::size_t kMostFrames = 8;
constexpr std::array<std::string_view, 3> kWords{"set", "get", "forget"};

using Frames = std::vector<std::vector<std::byte>>;

std::vector<std::byte> frame(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

deft::fuzz::Reached& questions() {
  static deft::fuzz::Reached asked("questions to the store of deft probe", kWords.size() + 1);
  return asked;
}

class Stranger {
 public:
  Stranger(zmq::context_t& context, const std::string& address) : dealer_(context, zmq::socket_type::dealer) {
    dealer_.set(zmq::sockopt::linger, kLingerMs);
    dealer_.connect("tcp://" + address);
  }

  void say(const Frames& frames) {
    for (std::size_t i = 0; i < frames.size(); ++i)
      dealer_.send(zmq::buffer(frames[i].data(), frames[i].size()),
                   i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    zmq::message_t answer;
    while (dealer_.recv(answer, zmq::recv_flags::dontwait)) continue;
  }

 private:
  zmq::socket_t dealer_;
};

// One act of the input.
Frames next_message(Bytes& bytes, std::uint8_t choice) {
  const std::size_t act = choice % 4U;
  questions().count(act);
  if (act < kWords.size())
    return {bytes.take_some(1), frame(kWords[act]), bytes.take_some(bytes.take<std::uint8_t>() % 4U),
            bytes.take_some(bytes.take<std::uint8_t>())};
  Frames frames(1 + choice / 8U % kMostFrames);
  for (auto& one : frames) one = bytes.take_some(bytes.take<std::uint8_t>());
  return frames;
}

void require_sound_store(ProbeStore& rank, const std::string& value) {
  const std::string key = "a sound rank's";
  if (const auto set = rank.set_text(key, value); !set) die(set.error().message());
  const auto got = rank.get_text(key, deft::MonotonicClock::now() + kAnswerUs);
  if (!got) die(got.error().message());
  if (*got != value) die("the store gave back " + *got + " for " + value);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const deft::AllSignalsBlocked until_the_end;  // libFuzzer's alarm would interrupt ZeroMQ
  static const std::string address = "127.0.0.1:" + std::to_string(20'000 + getpid() % 10'000);
  static const auto store = ProbeStore::open(address, true, kAnswerUs);
  static zmq::context_t context(1);
  static std::uint64_t inputs = 0;
  if (!store) die(store.error().message());
  std::array<Stranger, 2> strangers{Stranger(context, address), Stranger(context, address)};
  Bytes bytes({data, size});
  for (std::size_t acts = 0; acts < kMostActs && !bytes.empty(); ++acts) {
    const auto choice = bytes.take<std::uint8_t>();
    strangers[choice / 4U % 2U].say(next_message(bytes, choice));
  }
  require_sound_store(**store, "value " + std::to_string(inputs++));
  return 0;
}
