#include "daemon/http/status_source.h"

#include <utility>

namespace deft::daemon {

StatusSource::Status StatusSource::newest(bool answered) const {
  return {newest_, newest_ ? MonotonicClock::now() - newest_us_ : 0, answered};
}

void StatusSource::ask(Take take) {
  if (newest_ && MonotonicClock::now() - newest_us_ < kFreshUs) return take(newest(true));
  const std::uint64_t number = next_++;
  waiting_.emplace(number, std::move(take));
  http_.after(kPatienceUs, [this, number] { give_up(number); });
  if (std::exchange(asked_, true)) return;
  reactor_.post([this] {
    name_callback("a status over HTTP");
    const auto answer = [this](std::string text) { http_.post([this, text = std::move(text)] { arrived(text); }); };
    try {
      answer(make_status_());
    } catch (...) {
      answer("");  // else nobody would ask again
      throw;
    }
  });
}

void StatusSource::arrived(const std::string& text) {
  asked_ = false;
  auto json = std::make_shared<nlohmann::json>(nlohmann::json::parse(text, nullptr, false));
  if (!json->is_object()) return;  // the waiting ones give up
  newest_ = std::move(json);
  newest_us_ = MonotonicClock::now();
  const auto waiting = std::exchange(waiting_, {});
  for (const auto& [number, take] : waiting) take(newest(true));
}

void StatusSource::give_up(std::uint64_t number) {
  const auto found = waiting_.extract(number);
  if (!found.empty()) found.mapped()(newest(false));
}

}  // namespace deft::daemon
