// What a node knows when a message of its leader comes: the codec checks the message against it.
#pragma once

#include "daemon/node/job.h"
#include "daemon/wire/codec.h"

namespace deft::daemon {

class Job::Facts final : public wire::NodeFacts {
 public:
  explicit Facts(const Job& job) : job_(job) {}

  [[nodiscard]] std::uint32_t world() const override { return job_.world_; }
  [[nodiscard]] std::vector<std::uint32_t> local_ranks() const override;
  [[nodiscard]] std::size_t first_position() const override;
  [[nodiscard]] std::vector<std::uint32_t> link_epochs() const override;
  [[nodiscard]] std::uint64_t next_number() const override { return job_.next_number_; }
  [[nodiscard]] std::optional<Group> group(std::uint32_t id) const override;
  [[nodiscard]] std::optional<Operation> operation(const std::string& name) const override;
  [[nodiscard]] std::optional<std::size_t> keys_asked(std::uint64_t request) const override {
    return job_.store_ ? job_.store_->keys_asked(request) : std::nullopt;
  }

 private:
  const Job& job_;
};

}  // namespace deft::daemon
