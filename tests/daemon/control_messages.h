// A message of each kind between a node and its leader, all valid in one small job, and what both sides know in that job. For
// the tests and the fuzzer of the codec.
//
// The job: ranks 0 and 1 on node 0, which leads, and 2 and 3 on node 1, which sends to the leader and receives from it. Two
// links, the first of which was replaced once. Group 0 has two buckets of 2,048 bytes and four slots. The next launch is
// number 10. Node 1's workers have asked for the collectives "gather" and "sum", and for two keys by request 3.
#pragma once

#include <string>
#include <vector>

#include "daemon/wire/codec.h"

namespace deft::daemon::samples {

std::vector<wire::ToLeader> messages_to_leader();
// `next_number`: of the next launch. `link_epoch`: of the first link.
std::vector<wire::ToNode> messages_to_node(std::uint64_t next_number = 10, std::uint32_t link_epoch = 1);

// A message of each kind that is right for the job of fake_daemon.h at some stage. `busy`: its launches 0 and 1 were ordered.
std::vector<wire::ToNode> messages_to_job(bool busy);
// What a sound leader answers to the declaration of group 0.
wire::DeclareAgreed agreement();
// A launch of a whole bucket.
wire::Launch launch(std::uint32_t link, std::uint32_t bucket, std::uint64_t generation);

// What the leader knows of node 1; before node 1 has joined, it knows no ranks of it.
wire::LeaderFacts leader_facts(bool joined = true);

class NodeOne final : public wire::NodeFacts {
 public:
  [[nodiscard]] std::uint32_t world() const override { return 4; }
  [[nodiscard]] std::vector<std::uint32_t> local_ranks() const override { return {2, 3}; }
  [[nodiscard]] std::size_t first_position() const override { return 2; }
  [[nodiscard]] std::vector<std::uint32_t> link_epochs() const override { return {1, 0}; }
  [[nodiscard]] std::uint64_t next_number() const override { return 10; }
  [[nodiscard]] std::optional<Group> group(std::uint32_t id) const override;
  [[nodiscard]] std::optional<AskedCollective> collective(const std::string& name) const override;
  [[nodiscard]] std::optional<std::size_t> keys_asked(std::uint64_t request) const override;

 private:
  std::vector<model::Bucket> buckets_{{.name = "b0", .offset = 0, .bytes = 2048},
                                      {.name = "b1", .offset = 2048, .bytes = 2048, .forward_position = 6}};
};

}  // namespace deft::daemon::samples
