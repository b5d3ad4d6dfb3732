// What comes from the daemon, over the completion ring and the socket.
//
//   ArrivalReader reader(attachment);
//   Arrivals arrivals = reader.gather(patience_us);   // one thread at a time
#pragma once

#include <optional>
#include <vector>

#include "core/client/attach.h"
#include "core/ipc/channel.h"
#include "core/shm/ring.h"

namespace deft::client {

struct Arrivals {
  std::vector<shm::Record> records;
  std::vector<ipc::Packet> packets;
  std::optional<Error> broken;  // nothing more will come
};

// The daemon broke the protocol by sending `what`.
Error violation(const std::string& what);

class ArrivalReader {
 public:
  explicit ArrivalReader(Attachment& attachment)  // outlives this
      : attachment_(attachment), consumer_(attachment.view.completion(), attachment.view.completion_records()) {}

  // Takes all that is there. If no record is, spins for a moment and then sleeps up to `patience_us` for something to
  // come; 0: neither. Another thread ends the sleep by ringing the attachment's own doorbell.
  Arrivals gather(TimeUs patience_us);

 private:
  void take_records(Arrivals& arrivals);
  void take_packets(Arrivals& arrivals);
  void spin(Arrivals& arrivals);
  bool sleep(TimeUs patience_us);

  Attachment& attachment_;
  shm::Consumer consumer_;
};

}  // namespace deft::client
