// The job's key-value store for a worker, which reaches it through its daemon. Links that workers run use it for their
// rendezvous. The session must outlive the store. Any thread.
#pragma once

#include "core/client/session.h"
#include "core/link/link.h"

namespace deft::client {

class JobStore final : public link::Store {
 public:
  explicit JobStore(Session& session) : session_(session) {}
  Result<void> set(const std::string& key, std::span<const std::byte> value) override;
  Result<std::vector<std::vector<std::byte>>> get(std::span<const std::string> keys, TimeUs deadline_us) override;

 private:
  Session& session_;
};

}  // namespace deft::client
