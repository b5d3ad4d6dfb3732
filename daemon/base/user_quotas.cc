#include "daemon/base/user_quotas.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <string>

#include "daemon/base/user_threads.h"

namespace deft::daemon {
namespace {

struct Row {
  const char* limit;  // of the option user_limits
  const char* what;
};

constexpr std::array<Row, kQuotas> kRows{{
    {"sessions", "connections to the daemon"},
    {"descriptors", "descriptors of the daemon"},
    {"operations", "collectives under way"},
    {"names", "bytes of tensors' names"},
    {"store", "bytes in the stores of jobs"},
    {"memory", "bytes of shared memory"},
}};

constexpr std::size_t index_of(Quota quota) { return static_cast<std::size_t>(quota); }

// Some stay for the daemon itself, and for other users.
std::uint64_t most_descriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return 1U << 20;
  return limit.rlim_cur / 10 * 9;
}

}  // namespace

QuotaAmounts quota_limits(const Config& config) {
  QuotaAmounts limits{};
  for (std::size_t i = 0; i < kQuotas; ++i) {
    limits[i] = config.user_limit(kRows[i].limit);
    if (limits[i] == 0) limits[i] = std::numeric_limits<std::uint64_t>::max();
  }
  auto& descriptors = limits[index_of(Quota::kDescriptors)];
  descriptors = std::min(descriptors, most_descriptors());
  return limits;
}

void UserQuotas::set_limits(const QuotaAmounts& limits) {
  const std::lock_guard lock(mutex_);
  limits_ = limits;
}

Result<void> UserQuotas::take(uid_t user, Quota quota, std::uint64_t amount) {
  const std::lock_guard lock(mutex_);
  const std::size_t i = index_of(quota);
  const auto it = taken_.find(user);
  const std::uint64_t before = it == taken_.end() ? 0 : it->second[i];
  if (amount > limits_[i] || before > limits_[i] - amount)
    return fail(
        ErrorKind::kExhausted,
        "user " + std::to_string(user) + " has " + std::to_string(before) + " " + kRows[i].what + " and may have " +
            std::to_string(limits_[i]) + "; " + std::to_string(amount) + " more were asked for",
        std::string("end what is not needed, or raise ") + kRows[i].limit + " in the option user_limits of deftd");
  taken_[user][i] = before + amount;
  return {};
}

void UserQuotas::give_back(uid_t user, const QuotaAmounts& amounts) {
  const std::lock_guard lock(mutex_);
  const auto it = taken_.find(user);
  if (it == taken_.end()) return;
  for (std::size_t i = 0; i < kQuotas; ++i) it->second[i] -= amounts[i];
  if (it->second == QuotaAmounts{}) taken_.erase(it);
}

nlohmann::json UserQuotas::status(std::optional<uid_t> only) const {
  const auto threads = threads_by_user();
  std::map<uid_t, QuotaAmounts> all;
  {
    const std::lock_guard lock(mutex_);
    all = taken_;
  }
  for (const auto& [user, count] : threads) all.try_emplace(user);  // whose threads have not ended yet
  nlohmann::json users = nlohmann::json::array();
  for (const auto& [user, amounts] : all) {
    if (only && user != *only) continue;
    const auto working = threads.find(user);
    nlohmann::json json{{"user", user}, {"threads", working == threads.end() ? 0 : working->second}};
    for (std::size_t i = 0; i < kQuotas; ++i) json[kRows[i].limit] = amounts[i];
    users.push_back(std::move(json));
  }
  return users;
}

Result<void> QuotaAccount::take(Quota quota, std::uint64_t amount) {
  if (auto ok = quotas_->take(user_, quota, amount); !ok) return ok;
  const std::lock_guard lock(mutex_);
  taken_[index_of(quota)] += amount;
  return {};
}

void QuotaAccount::give_back(Quota quota, std::uint64_t amount) {
  QuotaAmounts amounts{};
  {
    const std::lock_guard lock(mutex_);
    auto& taken = taken_[index_of(quota)];
    amounts[index_of(quota)] = std::min(taken, amount);
    taken -= amounts[index_of(quota)];
  }
  quotas_->give_back(user_, amounts);
}

}  // namespace deft::daemon
