// The store in which the processes of `deft probe` find each other. Rank 0 holds it. All ranks read and write it over ZeroMQ.
//
//   auto store = ProbeStore::open("10.0.0.1:29611", rank == 0, timeout_us);   // rank 0 also serves
//   store->set("key", bytes);
//   auto values = store->get(keys, deadline_us);                  // asks again until all keys exist
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "core/link/link.h"
#include "tools/probe_socket.h"

namespace deft::tools {

class ProbeStore final : public link::Store {
 public:
  // Opens the store; with `serves` this process holds it. kUnavailable if the address is in use or belongs to another machine.
  // Other ranks wait up to `patience_us` for rank 0.
  static Result<std::shared_ptr<ProbeStore>> open(const std::string& address, bool serves, TimeUs patience_us);
  ~ProbeStore() override;

  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

  Result<void> set_text(const std::string& key, const std::string& value);
  Result<std::string> get_text(const std::string& key, TimeUs deadline_us);

 private:
  ProbeStore(std::string address, TimeUs patience_us) : address_(std::move(address)), patience_us_(patience_us) {}
  Result<void> listen();
  void serve();
  bool answer_one();
  void keep(const std::string& key, std::string value);
  Result<zmq::message_t> ask(const std::string& word, const std::string& key, std::span<const std::byte> value,
                             TimeUs deadline_us);
  void connect();

  const std::string address_;
  const TimeUs patience_us_;
  zmq::context_t context_;
  std::mutex mutex_;  // guards the client's side
  ProbeSocket client_;
  std::uint64_t questions_ = 0;
  // On rank 0: used by the thread alone.
  ProbeSocket server_;
  zmq::socket_t stop_;  // the destructor sends on it, and the thread ends
  zmq::socket_t stop_ear_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;  // of keys and values
  std::thread thread_;
};

}  // namespace deft::tools
