#include "core/link/try_threads.h"

#include <exception>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace deft::link {

Result<void> try_threads(std::size_t count) {
  std::promise<void> all_began;
  const std::shared_future<void> end = all_began.get_future().share();
  std::vector<std::thread> threads;
  threads.reserve(count);
  Result<void> result;
  try {
    while (threads.size() < count) threads.emplace_back([end] { end.wait(); });
  } catch (const std::exception& error) {
    result = fail(ErrorKind::kExhausted, std::string("no thread for a link: ") + error.what(),
                  "raise the limits on memory and threads");
  }
  all_began.set_value();
  for (auto& thread : threads) thread.join();
  return result;
}

}  // namespace deft::link
