#include "daemon/wire/connection_budget.h"

#include <glog/logging.h>

#include "daemon/base/process_setup.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {
namespace {

// A message, and what comes behind it before it is taken. All together: a thousand nodes may send their DECLARE at once. A stranger's
// first message is a JOIN, or a leader's answer to one, of some kilobytes.
constexpr link::UnfinishedMessages::Limits kMostUnfinished{.of_one = wire::kMaxMessageBytes * 3 / 2,
                                                           .of_all = 8 * wire::kMaxMessageBytes,
                                                           .of_strangers = wire::kMaxMessageBytes / 2};
// Nodes of a job that waits do not wake the daemon often.
constexpr TimeUs kLookAtMembersUs = 4 * link::UnfinishedMessages::kLookUs;
constexpr std::uint64_t kMuchBytes = 1 << 20;  // whose memory is worth giving back
constexpr TimeUs kGiveBackUs = 5'000'000;

}  // namespace

ConnectionBudget::~ConnectionBudget() {
  reactor_.cancel(look_);
  reactor_.cancel(give_back_);
}

void ConnectionBudget::watch(const std::vector<int>& connections, std::uint16_t port) {
  for (const int fd : connections) unfinished_.connected(fd, port);
  if (!connections.empty()) look_later();
}

void ConnectionBudget::delivered(const zmq::message_t& frame, std::uint64_t wire_bytes, bool is_member) {
  if (is_member)
    unfinished_.delivered(frame);
  else
    unfinished_.delivered_by_stranger(frame, wire_bytes);
}

// The timers are for all connections: they do not belong to the job whose connection came first.
void ConnectionBudget::look_later() {
  if (unfinished_.empty()) return;
  const TimeUs wait_us = unfinished_.has_strangers() ? link::UnfinishedMessages::kLookUs : kLookAtMembersUs;
  const TimeUs due_us = reactor_.now_us() + wait_us;
  if (look_ != 0 && due_us >= look_due_us_) return;
  reactor_.cancel(look_);
  look_due_us_ = due_us;
  run_for({}, "a look at unfinished messages", [&] { look_ = reactor_.after(wait_us, [this] { look(); }); });
}

void ConnectionBudget::look() {
  name_callback("a look at unfinished messages");
  look_ = 0;
  const unsigned ended = unfinished_.look(kMostUnfinished, reactor_.now_us(), messages_wait_);
  ended_ += ended;
  if (ended > 0)
    if (const auto left_out = lines_.admit(reactor_.now_us()))
      LOG(WARNING) << ended << " control connections were ended: one had sent " << (kMostUnfinished.of_one >> 20)
                   << " MiB and no whole message, those of no job " << (kMostUnfinished.of_strangers >> 20)
                   << " MiB together, or all of them " << (kMostUnfinished.of_all >> 20) << " MiB"
                   << RateLimit::describe(*left_out);
  if (ended > 0 || unfinished_.bytes() > kMuchBytes) give_back_later();
  look_later();
}

// ZeroMQ frees the memory of an ended connection some time after its end. So what ends shortly before the heap gives back has a turn of
// its own after that.
void ConnectionBudget::give_back_later() {
  gives_back_again_ = give_back_ != 0;
  if (gives_back_again_) return;
  give_back_ = reactor_.after(kGiveBackUs, [this] {
    give_back_ = 0;
    reactor_.offload(BlockingWork::kNobody, give_back_free_memory);
    if (gives_back_again_) give_back_later();
  });
}

}  // namespace deft::daemon
