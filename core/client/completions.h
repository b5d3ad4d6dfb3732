// Calls back when gradients are reduced and when collectives have ended, so that no thread of the framework has to wait.
//
//   Completions completions(session);
//   completions.when_reduced(group, first, count, generation, [](const Result<void>& result) { ... });
//   completions.when_done(operation, [](const Result<void>& result) { ... });
//
// The first call starts a thread, which waits for the daemon and runs the callbacks one after the other, without any lock. Each
// callback runs exactly once. If the job fails or the session ends, it runs with that error. A callback must not block for
// long, because it delays the others. It may ask for further callbacks. Any thread may call these functions. The session must
// outlive this object. The destructor waits for the thread, and must not run in a callback.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/client/gradient_group.h"
#include "core/client/session.h"

namespace deft::client {

class Completions {
 public:
  using Callback = std::function<void(const Result<void>&)>;

  explicit Completions(Session& session) : session_(session) {}
  ~Completions();  // call session.end() before
  Completions(const Completions&) = delete;
  Completions& operator=(const Completions&) = delete;

  // If this returns an error, `call` is never called. kExhausted if no thread can be started.
  Result<void> when_reduced(const GradientGroup& group, std::size_t first, std::size_t count, std::uint64_t generation,
                            Callback call);
  // `operation` is a number of the session's RequestTable. An operation that the caller has finished counts as done without an
  // error.
  Result<void> when_done(std::uint64_t operation, Callback call);

 private:
  // Gives the result when there is one. Called under the connection's lock.
  using Ask = std::function<std::optional<Result<void>>()>;
  struct Watch {
    Ask ask;
    Callback call;
    std::optional<Result<void>> result;
  };
  Result<void> add(Watch watch);
  Result<void> start_thread();
  void run();
  bool take_new();       // waits for watches; false if it is time to end
  void wait_for_some();  // waits until a watch has a result, or until there are new watches
  void call_those_with_results();

  Session& session_;
  std::mutex mutex_;  // guards `added_` and `ending_`
  std::condition_variable changed_;
  std::vector<Watch> added_;
  bool ending_ = false;
  std::vector<Watch> watches_;  // used by the thread alone
  std::thread thread_;
};

}  // namespace deft::client
