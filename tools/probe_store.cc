#include "tools/probe_store.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "core/link/address.h"

namespace deft::tools {
namespace {

constexpr std::chrono::milliseconds kAskAgain{10};
constexpr TimeUs kAnswerUs = 2'000'000;         // rank 0 answers at once while it lives, whatever is asked
constexpr std::size_t kMostBytes = 256U << 20;  // of all values; the ranks of a probe set some kilobytes each
constexpr int kAnswersAtOnce = 256;             // between looks at what else has happened
constexpr char kStopEndpoint[] = "inproc://stop";
constexpr std::string_view kPresent = "present";

// ZeroMQ listens on addresses and not on names. A node's own name may stand for a loopback address there, as in Debian's /etc/hosts,
// which no other node reaches. So for a name it listens on all addresses.
Result<std::string> endpoint_of(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  in_addr number{};
  const bool is_number = inet_pton(AF_INET, address.substr(0, colon).c_str(), &number) == 1;
  if (is_number || link::is_loopback_address(address) || link::is_ipv6(address))
    return link::listening_endpoint(address);
  return "tcp://*" + address.substr(colon);
}

}  // namespace

Result<std::shared_ptr<ProbeStore>> ProbeStore::open(const std::string& address, bool serves, TimeUs patience_us) {
  std::shared_ptr<ProbeStore> store(new ProbeStore(address, patience_us));
  if (serves) {
    if (auto ok = store->listen(); !ok) return tl::unexpected(ok.error());
  }
  try {
    store->connect();
  } catch (const zmq::error_t& error) {
    return fail(ErrorKind::kInvalid, "cannot connect to " + address + ": " + error.what(), "DEFT_LEADER is host:port");
  }
  return store;
}

ProbeStore::~ProbeStore() {
  if (thread_.joinable()) {
    stop_.send(zmq::message_t(), zmq::send_flags::none);
    thread_.join();
  }
}

Result<void> ProbeStore::listen() {
  const auto endpoint = endpoint_of(address_);
  if (!endpoint) return tl::unexpected(endpoint.error());
  try {
    server_.open(context_, zmq::socket_type::router, "inproc://server");
    server_->set(zmq::sockopt::linger, 0);
    server_.bind(*endpoint);
    stop_ear_ = zmq::socket_t(context_, zmq::socket_type::pair);
    stop_ear_.bind(kStopEndpoint);
    stop_ = zmq::socket_t(context_, zmq::socket_type::pair);
    stop_.connect(kStopEndpoint);
  } catch (const zmq::error_t& error) {
    return fail(ErrorKind::kExhausted, "rank 0 cannot listen on " + address_ + ": " + error.what(),
                "give all processes another port: --port N");
  }
  thread_ = std::thread([this] { serve(); });
  return {};
}

void ProbeStore::serve() {
  while (true) {
    std::array<zmq::pollitem_t, 2> items{{server_.messages(), {stop_ear_.handle(), 0, ZMQ_POLLIN, 0}}};
    zmq_poll(items.data(), static_cast<int>(items.size()), ProbeSocket::kLookUs / 1000);
    if ((items[1].revents & ZMQ_POLLIN) != 0) return;
    for (int i = 0; i < kAnswersAtOnce && answer_one(); ++i) continue;
    server_.end_endless_messages();
  }
}

// A question is: who asks, its number, a word, a key, a value. The answer: the number, whether there is a value, the value.
bool ProbeStore::answer_one() {
  auto frames = server_.receive(zmq::recv_flags::dontwait);
  if (frames.empty()) return false;
  if (frames.size() != 5) return true;
  const std::string key = frames[3].to_string();
  if (frames[2].to_string() == "set") keep(key, frames[4].to_string());
  const auto found = values_.find(key);
  const bool here = found != values_.end();
  server_->send(frames[0], zmq::send_flags::sndmore);
  server_->send(frames[1], zmq::send_flags::sndmore);
  server_->send(here ? zmq::buffer(kPresent) : zmq::const_buffer(), zmq::send_flags::sndmore);
  server_->send(here ? zmq::buffer(found->second) : zmq::const_buffer(), zmq::send_flags::none);
  return true;
}

// A stranger who fills the store ends no more than the probe: what does not fit is not kept, and who set it is told.
void ProbeStore::keep(const std::string& key, std::string value) {
  const auto old = values_.find(key);
  const std::size_t freed = old == values_.end() ? 0 : key.size() + old->second.size();
  const std::size_t bytes = bytes_ - freed + key.size() + value.size();
  if (old != values_.end()) values_.erase(old);
  bytes_ -= freed;
  if (bytes > kMostBytes) return;
  bytes_ = bytes;
  values_.emplace(key, std::move(value));
}

void ProbeStore::connect() {
  client_.open(context_, zmq::socket_type::dealer, "inproc://client");
  client_->set(zmq::sockopt::linger, 500);
  client_->set(zmq::sockopt::reconnect_ivl, 50);
  client_.connect(address_);
}

// One question and its answer: the value's frame, empty and without data if there is none.
Result<zmq::message_t> ProbeStore::ask(const std::string& word, const std::string& key,
                                       std::span<const std::byte> value, TimeUs deadline_us) {
  deadline_us = std::max(deadline_us, MonotonicClock::now() + kAnswerUs);
  const std::string number = std::to_string(++questions_);
  client_->send(zmq::buffer(number), zmq::send_flags::sndmore);
  client_->send(zmq::buffer(word), zmq::send_flags::sndmore);
  client_->send(zmq::buffer(key), zmq::send_flags::sndmore);
  client_->send(zmq::const_buffer(value.data(), value.size()), zmq::send_flags::none);
  while (true) {
    const TimeUs left = deadline_us - MonotonicClock::now();
    client_->set(zmq::sockopt::rcvtimeo, static_cast<int>(std::clamp<TimeUs>(left, 1000, ProbeSocket::kLookUs) / 1000));
    auto frames = client_.receive(zmq::recv_flags::none);
    client_.end_endless_messages();
    if (frames.empty()) {
      if (left > 0) continue;
      return fail(ErrorKind::kTimeout, "rank 0 does not answer at " + address_,
                  "start it too; DEFT_LEADER must be the same on all nodes, and this port must be open (--port N)");
    }
    if (frames.size() != 3) {
      return fail(ErrorKind::kViolation, "what answers at " + address_ + " is no rank 0 of deft probe",
                  "give all processes another port: --port N");
    }
    if (frames[0].to_string() != number) continue;  // to a question that was given up
    if (frames[1].empty()) return fail(ErrorKind::kUnavailable, "there is no " + key);
    return std::move(frames[2]);
  }
}

Result<void> ProbeStore::set(const std::string& key, std::span<const std::byte> value) {
  const std::lock_guard lock(mutex_);
  const auto answer = ask("set", key, value, MonotonicClock::now() + patience_us_);
  if (answer) return {};
  if (answer.error().kind != ErrorKind::kUnavailable) return tl::unexpected(answer.error());
  return fail(ErrorKind::kExhausted, "the store of rank 0 at " + address_ + " is full: a stranger writes into it",
              "give all processes another port: --port N");
}

Result<std::vector<std::vector<std::byte>>> ProbeStore::get(std::span<const std::string> keys, TimeUs deadline_us) {
  std::vector<std::vector<std::byte>> values;
  while (values.size() < keys.size()) {
    {
      const std::lock_guard lock(mutex_);
      const auto answer = ask("get", keys[values.size()], {}, deadline_us);
      if (answer) {
        const auto* bytes = answer->data<std::byte>();
        values.emplace_back(bytes, bytes + answer->size());
        continue;
      }
      if (answer.error().kind != ErrorKind::kUnavailable) return tl::unexpected(answer.error());
    }
    if (MonotonicClock::now() >= deadline_us) {
      return fail(ErrorKind::kTimeout, "nobody has set " + keys[values.size()] + " in time");
    }
    std::this_thread::sleep_for(kAskAgain);
  }
  return values;
}

Result<void> ProbeStore::set_text(const std::string& key, const std::string& value) {
  return set(key, {reinterpret_cast<const std::byte*>(value.data()), value.size()});
}

Result<std::string> ProbeStore::get_text(const std::string& key, TimeUs deadline_us) {
  const auto values = get({&key, 1}, deadline_us);
  if (!values) return tl::unexpected(values.error());
  return std::string(reinterpret_cast<const char*>(values->front().data()), values->front().size());
}

}  // namespace deft::tools
