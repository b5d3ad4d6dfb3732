#include "core/client/arrivals.h"

#include <poll.h>

#include <algorithm>
#include <string>
#include <utility>

namespace deft::client {
namespace {

constexpr std::size_t kMaxRecordsAtOnce = 512;

Error daemon_gone() {
  return {ErrorKind::kLost, "the daemon on this node is gone", "see deftd's log, start it again and restart the job",
          ""};
}

Error daemon_hangs(TimeUs silent_us) {
  return {ErrorKind::kLost,
          "the daemon on this node hangs: no sign of life for " + std::to_string(silent_us / 1000) + " ms",
          "look whether deftd is stopped, or waits for a disk or a debugger; raise DEFT_TIMEOUT if it pauses rightly",
          ""};
}

}  // namespace

Error violation(const std::string& what) {
  return {ErrorKind::kViolation, "the daemon on this node sent " + what,
          "install the same version of Deft for the daemon and the workers", ""};
}

Arrivals ArrivalReader::gather(TimeUs patience_us) {
  Arrivals arrivals;
  take_records(arrivals);
  if (arrivals.records.empty() && patience_us > 0) spin(arrivals);
  if (!arrivals.records.empty()) return arrivals;
  if (sleep(std::min(patience_us, pulse_.interval_us()))) take_packets(arrivals);
  take_records(arrivals);
  if (arrivals.records.empty() && arrivals.packets.empty()) feel_pulse(arrivals);
  return arrivals;
}

void ArrivalReader::feel_pulse(Arrivals& arrivals) {
  if (arrivals.broken) return;
  const auto silent_us = pulse_.look(attachment_.view.heartbeats(), MonotonicClock::now());
  if (silent_us) arrivals.broken = daemon_hangs(*silent_us);
}

void ArrivalReader::take_records(Arrivals& arrivals) {
  shm::Record record;
  while (arrivals.records.size() < kMaxRecordsAtOnce) {
    const auto popped = consumer_.pop(record);
    if (popped == shm::Pop::kCorrupt) arrivals.broken = violation("a completion ring that makes no sense");
    if (popped != shm::Pop::kRecord) return;
    arrivals.records.push_back(record);
  }
}

void ArrivalReader::take_packets(Arrivals& arrivals) {
  while (true) {
    auto packet = attachment_.channel.try_receive();
    if (!packet) {
      arrivals.broken = packet.error();
      return;
    }
    if (!*packet) return;
    if ((*packet)->bytes.empty()) {
      arrivals.broken = daemon_gone();
      return;
    }
    arrivals.packets.push_back(std::move(**packet));
  }
}

void ArrivalReader::spin(Arrivals& arrivals) {
  const TimeUs end_us = MonotonicClock::now() + attachment_.spin_us;
  while (arrivals.records.empty() && !arrivals.broken && MonotonicClock::now() < end_us) take_records(arrivals);
}

// True: the socket has something.
bool ArrivalReader::sleep(TimeUs patience_us) {
  pollfd entries[] = {{attachment_.channel.descriptor(), POLLIN, 0}, {attachment_.own_bell.descriptor(), POLLIN, 0}};
  if (patience_us == 0) return poll(entries, 1, 0) > 0;
  if (!consumer_.prepare_to_sleep()) return false;
  const int ready = poll(entries, 2, static_cast<int>(patience_us / 1000));
  consumer_.woke();
  if (ready > 0 && entries[1].revents != 0) attachment_.own_bell.drain();
  return ready > 0 && entries[0].revents != 0;
}

}  // namespace deft::client
