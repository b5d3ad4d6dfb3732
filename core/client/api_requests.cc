// The C interface (deft.h) besides gradients and collectives: options, the job's store, the daemon.
#include <span>

#include "core/client/api.h"
#include "core/client/options.h"
#include "core/ipc/daemon_query.h"
#include "core/ipc/wire.h"

namespace client = deft::client;
using client::answered;
using client::deadline_in;
using client::guarded;
using client::missing;
using client::report;
using deft::Error;
using deft::ErrorKind;

namespace {

constexpr deft::TimeUs kStatusPatienceUs = 10'000'000;

}  // namespace

extern "C" {

int deft_interface_version(void) { return DEFT_INTERFACE_VERSION; }

const char* deft_version(void) { return client::kVersion; }

const char* deft_option(const char* name, deft_error* error) {
  const char* value = nullptr;
  guarded(error, [&] {
    if (name == nullptr) return missing("the option's name", error);
    auto found = client::option_value(name);
    if (!found) return report(found.error(), error);
    value = *found;
    return int{DEFT_OK};
  });
  return value;
}

int deft_policy_traits(const char* policy, deft_error* error) {
  int traits = 0;
  const int code = guarded(error, [&] {
    if (policy == nullptr) return missing("the policy's name", error);
    const auto found = client::policy_bits(policy);
    if (!found) return report(found.error(), error);
    traits = *found;
    return int{DEFT_OK};
  });
  return code == DEFT_OK ? traits : -code;
}

int deft_store_set(deft_session* session, const char* key, const void* value, size_t bytes, deft_error* error) {
  return guarded(session, error, [&] {
    if (session == nullptr || key == nullptr || (value == nullptr && bytes > 0))
      return missing("session, key or value", error);
    if (bytes > DEFT_STORE_VALUE_BYTES)
      return report(Error{ErrorKind::kInvalid, "a value of the store has " + std::to_string(bytes) + " bytes", "", ""},
                    error);
    const std::span data(static_cast<const std::byte*>(value), bytes);
    return report(client::JobStore(*session->session).set(key, data), error);
  });
}

int deft_store_ask(deft_session* session, const char* key, uint32_t* question, deft_error* error) {
  return guarded(session, error, [&] {
    if (session == nullptr || key == nullptr || question == nullptr) return missing("session, key or question", error);
    const auto asked = client::JobStore(*session->session).ask(key);
    if (!asked) return report(asked.error(), error);
    *question = *asked;
    return int{DEFT_OK};
  });
}

int deft_store_answer(deft_session* session, uint32_t question, uint64_t timeout_us, void* value, size_t* bytes,
                      deft_error* error) {
  return answered(session, error, [&] {
    if (session == nullptr || value == nullptr || bytes == nullptr) return -missing("session, value or bytes", error);
    const auto answer = client::JobStore(*session->session).answer(question, deadline_in(timeout_us));
    if (!answer && answer.error().kind == ErrorKind::kTimeout) return 0;
    if (!answer) return -report(answer.error(), error);
    *bytes = std::min<std::size_t>(answer->size(), DEFT_STORE_VALUE_BYTES);
    if (*bytes > 0) std::memcpy(value, answer->data(), *bytes);
    return 1;
  });
}

const char* deft_daemon_status(deft_error* error) {
  static thread_local std::string text;
  const int code = guarded(error, [&] {
    const auto socket = client::option_value("socket");
    if (!socket) return report(socket.error(), error);
    auto status = deft::ipc::query_status(*socket, kStatusPatienceUs);
    if (!status) return report(status.error(), error);
    text = std::move(status->text);
    return int{DEFT_OK};
  });
  return code == DEFT_OK ? text.c_str() : nullptr;
}

}  // extern "C"
