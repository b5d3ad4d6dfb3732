#include "daemon/base/callback_owner.h"

#include <glog/logging.h>
#include <glog/raw_logging.h>

#include <atomic>
#include <exception>
#include <new>
#include <string>
#include <system_error>

namespace deft::daemon {
namespace {

std::atomic<std::uint64_t> failed{0};

}  // namespace

Error error_of_exception(const std::string& what) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {ErrorKind::kExhausted, "the daemon is out of memory, at " + what, "give it more, or run fewer jobs",
            "deftd"};
  } catch (const std::system_error& e) {
    return {ErrorKind::kExhausted, "the kernel refuses the daemon, at " + what + ": " + e.what(),
            "raise the limits on threads and open files", "deftd"};
  } catch (const std::exception& e) {
    return {ErrorKind::kInternal, what + " failed: " + e.what(), "", "deftd"};
  } catch (...) {
    return {ErrorKind::kInternal, what + " failed by an unknown exception", "", "deftd"};
  }
}

std::uint64_t failed_callbacks() { return failed; }

void detail::report_exception(const OwnerRef& owner, std::string_view what) noexcept {
  const std::uint64_t count = ++failed;
  try {  // the report needs memory, too, and the owner's code runs
    const Error error = error_of_exception(std::string(what));
    LOG_EVERY_N(ERROR, 100) << "a callback failed (" << count << " until now): " << error.message();
    if (const auto told = owner.lock()) told->callback_failed(error);
  } catch (const std::exception& e) {
    RAW_LOG(ERROR, "a callback failed, and its owner could not be told: %s", e.what());
  } catch (...) {
    RAW_LOG(ERROR, "a callback failed, and its owner could not be told");
  }
}

}  // namespace deft::daemon
