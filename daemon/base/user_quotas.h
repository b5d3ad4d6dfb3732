// Counts what each user takes of the daemon, and limits what one user may take. So no user can use the daemon up for the others.
//
//   auto quotas = std::make_shared<UserQuotas>(quota_limits(config));
//   QuotaAccount account(quotas, uid);
//   if (auto ok = account.take(Quota::kDescriptors, 3); !ok) refuse(ok.error());   // names the user, the limit and its option
//   account.give_back(Quota::kDescriptors, 1);
//   // the account's end gives the rest back
//
// Any thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/base/config.h"
#include "core/base/status.h"

namespace deft::daemon {

enum class Quota : std::uint8_t {
  kSessions,     // connections of clients
  kDescriptors,  // sockets, shared memory, doorbells; of links that the daemon runs: about
  kOperations,   // collectives under way
  kNameBytes,    // of tensors that were declared
  kStoreBytes,   // put into the stores of jobs; answers of them that wait to be read
  kMemoryBytes,  // shared memory
};
inline constexpr std::size_t kQuotas = 6;

using QuotaAmounts = std::array<std::uint64_t, kQuotas>;

// The limits by the option user_limits. If one is 0, the process's own limits decide.
QuotaAmounts quota_limits(const Config& config);

class UserQuotas {
 public:
  explicit UserQuotas(const QuotaAmounts& limits) : limits_(limits) {}
  // Who has more already keeps it.
  void set_limits(const QuotaAmounts& limits);

  // kExhausted: the user would have more than the limit; then nothing is taken.
  Result<void> take(uid_t user, Quota quota, std::uint64_t amount);
  void give_back(uid_t user, const QuotaAmounts& amounts);

  // What each user has, and how many threads work for him, one object a user: this one, or all.
  [[nodiscard]] nlohmann::json status(std::optional<uid_t> only = std::nullopt) const;

 private:
  mutable std::mutex mutex_;
  QuotaAmounts limits_;
  std::map<uid_t, QuotaAmounts> taken_;  // of users who have anything
};

// What one client has of its user's quotas.
class QuotaAccount {
 public:
  QuotaAccount(std::shared_ptr<UserQuotas> quotas, uid_t user) : quotas_(std::move(quotas)), user_(user) {}
  ~QuotaAccount() { quotas_->give_back(user_, taken_); }
  QuotaAccount(const QuotaAccount&) = delete;
  QuotaAccount& operator=(const QuotaAccount&) = delete;

  [[nodiscard]] uid_t user() const { return user_; }
  Result<void> take(Quota quota, std::uint64_t amount);
  void give_back(Quota quota, std::uint64_t amount);  // at most what take() took

 private:
  const std::shared_ptr<UserQuotas> quotas_;
  const uid_t user_;
  std::mutex mutex_;
  QuotaAmounts taken_{};
};

}  // namespace deft::daemon
