// Workers and a leader that are no processes: they remember what a job told them.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "daemon/node/leader_port.h"
#include "daemon/node/worker_port.h"

namespace deft::daemon {

struct FakeRings {
  void end_rings() {
    for (const auto& made : std::exchange(late_rings, {}))
      made(rings_error ? tl::unexpected(*rings_error) : Result<void>());
  }
  std::optional<Error> rings_error;  // what the rings fail with
  bool rings_later = false;          // rings are made by end_rings()
  std::vector<WorkerPort::RingsMade> late_rings;
};

struct FakeWorker final : WorkerPort, FakeRings {
  explicit FakeWorker(std::uint32_t rank = 0, std::uint32_t world = 1, std::uint32_t local_rank = 0,
                      std::uint32_t local_size = 1) {
    attached.job = "job";
    attached.rank = rank;
    attached.world = world;
    attached.local_rank = local_rank;
    attached.local_size = local_size;
    identity.pid = static_cast<pid_t>(1000 + rank);
    identity.uid = 7;
  }

  [[nodiscard]] const WorkerHello& hello() const override { return attached; }
  [[nodiscard]] const ipc::PeerIdentity& peer() const override { return identity; }
  [[nodiscard]] std::string describe() const override { return "rank " + std::to_string(attached.rank); }
  void serve(const std::weak_ptr<JobPort>& port) override { job = port; }
  void make_rings(RingsMade made) override {
    late_rings.push_back(std::move(made));
    if (!rings_later) end_rings();
  }
  Result<void> welcome(const JobStart& start) override {
    starts.push_back(start);
    return {};
  }
  void grant_arena(std::uint32_t group, std::uint64_t bytes, std::uint32_t buckets, ArenaGranted then) override {
    if (arena_error) return then(tl::unexpected(*arena_error));
    if (arena_later) {
      late_arenas.push_back(
          [this, group, bytes, buckets, then = std::move(then)] { grant_arena(group, bytes, buckets, then); });
      return;
    }
    granted.emplace_back(group, buckets);
    auto segment = shm::Segment::create("test-arena", bytes);
    if (!segment) return then(tl::unexpected(segment.error()));
    then(std::make_shared<shm::Segment>(std::move(*segment)));
  }
  void complete(const shm::Record& record) override { records.push_back(record); }
  void send_error(const Error& error, std::uint64_t operation) override { errors.emplace_back(error, operation); }
  void send_store_value(std::uint32_t request, const std::string& key, std::span<const std::byte> value) override {
    values.emplace_back(request, key, std::string(reinterpret_cast<const char*>(value.data()), value.size()));
  }
  void close(const Error& reason) override { closed.push_back(reason); }

  std::weak_ptr<JobPort> job;
  WorkerHello attached;
  ipc::PeerIdentity identity;
  void make_late_arenas() {
    arena_later = false;
    for (const auto& make : std::exchange(late_arenas, {})) make();
  }

  std::optional<Error> arena_error;  // what the next arena fails with
  bool arena_later = false;          // arenas are made by make_late_arenas()
  std::vector<std::function<void()>> late_arenas;
  std::vector<JobStart> starts;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> granted;  // group and buckets
  std::vector<shm::Record> records;
  std::vector<std::pair<Error, std::uint64_t>> errors;  // and the operation
  std::vector<std::tuple<std::uint32_t, std::string, std::string>> values;
  std::vector<Error> closed;
};

struct FakeLeader final : LeaderPort {
  void send(wire::ToLeader message) override { sent.push_back(std::move(message)); }

  // The messages of one type, in order.
  template <typename Message>
  [[nodiscard]] std::vector<Message> all() const {
    std::vector<Message> out;
    for (const auto& message : sent)
      if (const auto* one = std::get_if<Message>(&message)) out.push_back(*one);
    return out;
  }

  std::vector<wire::ToLeader> sent;
};

}  // namespace deft::daemon
