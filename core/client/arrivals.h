// Reads records and messages of the daemon: records of the completion ring, and messages of the socket.
//
//   ArrivalReader reader(attachment);
//   Arrivals arrivals = reader.gather(patience_us);   // one thread at a time
//
// Connection (connection.h) decides which thread calls gather().
#pragma once

#include <optional>
#include <vector>

#include "core/client/attach.h"
#include "core/client/daemon_pulse.h"
#include "core/ipc/message_socket.h"
#include "core/shm/ring.h"

namespace deft::client {

// The records and packets of one call of gather(), in the order in which they came.
struct Arrivals {
  std::vector<shm::Record> records;
  std::vector<ipc::Packet> packets;
  std::optional<Error> broken;  // why nothing more will come; empty: the connection works
};

// The error for a daemon that broke the protocol by sending `what`.
Error violation(const std::string& what);

class ArrivalReader {
 public:
  explicit ArrivalReader(Attachment& attachment)  // must outlive this object
      : attachment_(attachment),
        consumer_(attachment.view.completion(), attachment.view.completion_records()),
        pulse_(attachment.timeout_us / 2) {}

  // Takes everything that has come. If no record has come, it spins for a moment and then sleeps for up to `patience_us`; with 0
  // it does neither. Another thread can end the sleep by ringing the attachment's own doorbell.
  // If the daemon gives no sign of life for half of the job's timeout, that is an error, too.
  Arrivals gather(TimeUs patience_us);

 private:
  void take_records(Arrivals& arrivals);
  void take_packets(Arrivals& arrivals);
  void spin(Arrivals& arrivals);
  bool sleep(TimeUs patience_us);
  void feel_pulse(Arrivals& arrivals);

  Attachment& attachment_;
  shm::Consumer consumer_;
  DaemonPulse pulse_;
};

}  // namespace deft::client
