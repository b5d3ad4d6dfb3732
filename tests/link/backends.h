// The conformance suite runs every test over every backend, with nodes as threads on loopback addresses.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "core/link/link.h"
#include "tests/link/stores.h"

namespace deft::link::testing {

// How soon an operation must end: the machine may be busy, and an operation that nothing ends waits for ever.
inline constexpr TimeUs kPromptly = 30'000'000;

struct Backend {
  std::string name;
  bool encrypts = false;
};

// A suite over all backends. A backend that this build lacks is skipped in every test, with the reason.
class BackendTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override;
};
inline void PrintTo(const Backend& backend, std::ostream* out) {
  *out << backend.name << (backend.encrypts ? ", encrypted" : "");
}

std::vector<Backend> backends();
// The same, and beside them those that encrypt by themselves.
std::vector<Backend> backends_with_encryption();
std::string name_of(const ::testing::TestParamInfo<Backend>& info);

// The link of `node` in this machine.
LinkSpec spec_for(const Backend& backend, std::uint32_t node);

TimeUs seconds_from_now(double seconds);

// A store, and a key prefix that no other test uses. It encrypts if `backend` does.
LinkGroup make_group(std::uint32_t nodes, std::shared_ptr<Store> store, const Backend& backend = {});

// Opens the link of `node` in `group`; null (and a failed test) when that fails.
std::unique_ptr<Link> open_or_fail(const Backend& backend, LinkGroup group, std::uint32_t node);

// Runs `body` on each node of a new link, each in its own thread; returns when all are done and all links closed.
void on_nodes(const Backend& backend, std::uint32_t nodes, const std::function<void(std::uint32_t, Link&)>& body);

// Run one request alone.
Result<void> all_reduce(Link& link, std::byte* data, std::size_t count, model::DType dtype, model::ReduceOp op);
Result<void> broadcast(Link& link, std::byte* data, std::size_t bytes, std::uint32_t root);
Result<void> all_gather(Link& link, std::byte* data, const std::vector<std::size_t>& bytes);

// Patterns and results as memcpy() and memcmp() handle them: a sanitizer then sees one access and not one for each element.
// repeat() fills `data` with its first `period` bytes.
void repeat(std::byte* data, std::size_t bytes, std::size_t period);
bool same(const Bytes& one, const Bytes& other);

// Open descriptors and threads of this process, to find leaks; a joined thread is not counted.
std::size_t open_descriptors();
std::size_t threads();

}  // namespace deft::link::testing

#define ASSERT_OK(expression)                                    \
  do {                                                           \
    const auto result_of_it = (expression);                      \
    ASSERT_TRUE(result_of_it) << result_of_it.error().message(); \
  } while (false)
