#include "core/select/simulating_selector.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/sim/simulation.h"

namespace deft::select {
namespace {

using sched::LaunchSizes;
using sched::PolicyForecast;
using sched::PolicyQuestion;

constexpr std::uint64_t kSteps = 12, kWarmupSteps = 6;
constexpr std::uint64_t kMostEvents = 2'000'000;  // some seconds
constexpr int kNice = 10;
constexpr std::uint64_t kLeastSize = 64 << 10, kMostPart = 16 << 20, kMostCredit = 64 << 20;
constexpr std::size_t kMostSizes = 15;  // that a descent simulates
constexpr double kLeastGain = 0.01;

// The sizes so many times as large; nothing beyond their limits.
std::optional<LaunchSizes> scaled(const LaunchSizes& sizes, double part, double credit) {
  const auto times = [](std::uint64_t bytes, double factor) {
    return static_cast<std::uint64_t>(factor * static_cast<double>(bytes));
  };
  const LaunchSizes next{times(sizes.partition_bytes, part), times(sizes.credit_bytes, credit)};
  const bool possible = next.partition_bytes >= kLeastSize && next.partition_bytes <= kMostPart &&
                        next.credit_bytes >= kLeastSize && next.credit_bytes <= kMostCredit;
  return possible ? std::optional(next) : std::nullopt;
}

using Stopped = std::function<bool()>;  // there is a newer question, or nobody wants an answer any more

// Looks for better sizes of one policy. Each size is simulated once.
class SizeDescent {
 public:
  SizeDescent(const PolicyQuestion& question, bool has_priority_channels, const PolicyForecast& start,
              const Stopped& is_stopped)
      : question_(question), has_priority_channels_(has_priority_channels), is_stopped_(is_stopped), best_(start) {
    if (!best_.choice.sizes)  // the job has tuned ones otherwise
      best_.choice.sizes = LaunchSizes{question.setup.partition_bytes, question.setup.credit_bytes};
    seen_.push_back(*best_.choice.sizes);
  }

  PolicyForecast run() {
    constexpr std::array<std::pair<int, int>, 6> kDirections = {
        {{1, 0}, {-1, 0}, {0, 1}, {0, -1}, {1, 1}, {-1, -1}}};  // of the part and the credit
    for (const double factor : {4.0, 2.0})
      for (bool moved = true; moved;) {
        moved = false;
        for (const auto& [part, credit] : kDirections)
          while (!is_stopped_() && step(std::pow(factor, part), std::pow(factor, credit))) moved = true;
      }
    return best_;
  }

 private:
  // True: these sizes are better.
  bool step(double part, double credit) {
    const auto sizes = scaled(*best_.choice.sizes, part, credit);
    if (!sizes || seen_.size() > kMostSizes || std::ranges::find(seen_, *sizes) != seen_.end()) return false;
    seen_.push_back(*sizes);
    sched::PolicyChoice choice = best_.choice;
    choice.sizes = sizes;
    const auto next = forecast(question_, choice, has_priority_channels_, is_stopped_);
    if (!next || next->step_us > (1 - kLeastGain) * best_.step_us) return false;
    best_ = *next;
    return true;
  }

  const PolicyQuestion& question_;
  const bool has_priority_channels_;
  const Stopped& is_stopped_;
  PolicyForecast best_;
  std::vector<LaunchSizes> seen_;
};

bool has_sizes(const PolicyForecast& forecast) {
  const PolicyTraits* const traits = find_policy(forecast.choice.policy);
  return traits != nullptr && traits->has_sizes;
}

// The best first. Ends early if `is_stopped` says so.
std::vector<PolicyForecast> compare(const PolicyQuestion& question, bool has_priority_channels,
                                    const Stopped& is_stopped) {
  std::vector<PolicyForecast> forecasts;
  for (const auto& candidate : question.candidates) {
    if (is_stopped()) return {};
    if (auto made = forecast(question, candidate, has_priority_channels, is_stopped))
      forecasts.push_back(*std::move(made));
  }
  std::ranges::stable_sort(forecasts, {}, &PolicyForecast::step_us);
  const auto urgent = std::ranges::find_if(forecasts, has_sizes);
  if (!question.tunes_sizes || urgent == forecasts.end()) return forecasts;
  const PolicyForecast tuned = SizeDescent(question, has_priority_channels, *urgent, is_stopped).run();
  if (tuned.step_us < urgent->step_us) forecasts.push_back(tuned);
  std::ranges::stable_sort(forecasts, {}, &PolicyForecast::step_us);
  return forecasts;
}

class ImmediateSelector final : public sched::PolicySelector {
 public:
  explicit ImmediateSelector(bool has_priority_channels) : has_priority_channels_(has_priority_channels) {}

  void ask(PolicyQuestion question) override {
    answer_ = compare(question, has_priority_channels_, [] { return false; });
  }
  std::optional<std::vector<PolicyForecast>> take() override { return std::exchange(answer_, std::nullopt); }

 private:
  const bool has_priority_channels_;
  std::optional<std::vector<PolicyForecast>> answer_;
};

class BackgroundSelector final : public sched::PolicySelector {
 public:
  explicit BackgroundSelector(bool has_priority_channels) : has_priority_channels_(has_priority_channels) {}
  ~BackgroundSelector() override {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wakes_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  BackgroundSelector(const BackgroundSelector&) = delete;
  BackgroundSelector& operator=(const BackgroundSelector&) = delete;

  void ask(PolicyQuestion question) override {
    const std::lock_guard lock(mutex_);
    question_ = std::move(question);
    answer_.reset();
    wakes_.notify_one();
    if (!thread_.joinable()) begin();
  }
  std::optional<std::vector<PolicyForecast>> take() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(answer_, std::nullopt);
  }

 private:
  // Without a thread there is no forecast, and the job goes on as it is.
  void begin() {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::exception&) {
      answer_.emplace();
    }
  }

  void run() {
    setpriority(PRIO_PROCESS, 0, kNice);  // of this thread
    std::unique_lock lock(mutex_);
    while (true) {
      wakes_.wait(lock, [this] { return ended_ || question_; });
      if (ended_) return;
      const PolicyQuestion question = *std::exchange(question_, std::nullopt);
      lock.unlock();
      std::vector<PolicyForecast> answer;
      try {
        answer = compare(question, has_priority_channels_, [this] {
          const std::lock_guard again(mutex_);
          return ended_ || question_;
        });
      } catch (const std::exception&) {  // memory ran out: no forecast
      }
      lock.lock();
      if (!question_) answer_ = std::move(answer);
    }
  }

  const bool has_priority_channels_;
  std::mutex mutex_;
  std::condition_variable wakes_;
  bool ended_ = false;
  std::optional<PolicyQuestion> question_;
  std::optional<std::vector<PolicyForecast>> answer_;
  std::thread thread_;
};

}  // namespace

Result<PolicyForecast> forecast(const PolicyQuestion& question, const sched::PolicyChoice& candidate,
                                bool has_priority_channels, const std::function<bool()>& is_stopped) {
  sched::Setup setup = question.setup;
  setup.policy = candidate.policy;
  setup.fused_bytes = candidate.fused_bytes;
  if (candidate.sizes) {
    setup.partition_bytes = candidate.sizes->partition_bytes;
    setup.credit_bytes = candidate.sizes->credit_bytes;
  }
  setup.selector = nullptr;
  setup.reports_updates = true;
  setup.codec = 0;  // all launches have the same one, and links are measured with it
  setup.links.clear();
  sim::Options options{.steps = kSteps, .warmup_steps = kWarmupSteps, .max_events = kMostEvents};
  options.overlaps_forward = question.overlaps_forward;
  options.is_stopped = is_stopped;
  for (model::LinkIndex link = 0; link < question.profile.links.size(); ++link) {
    setup.links.push_back(question.profile.link_model(link));
    if (has_priority_channels) options.priority_links.push_back(link);
  }
  const auto scheduler = sched::make_scheduler(setup);
  if (!scheduler) return tl::unexpected(scheduler.error());
  const auto outcome = sim::simulate(**scheduler, question.profile, options);
  if (!outcome) return tl::unexpected(outcome.error());
  return PolicyForecast{candidate, outcome->step_us, outcome->launches_per_step};
}

std::shared_ptr<sched::PolicySelector> make_selector(When when, bool has_priority_channels) {
  if (when == When::kAtOnce) return std::make_shared<ImmediateSelector>(has_priority_channels);
  return std::make_shared<BackgroundSelector>(has_priority_channels);
}

}  // namespace deft::select
