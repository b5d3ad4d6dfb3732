// A tcp link between two members, of which the other one follows no rule (hostile_member.h): invitations in the store, greetings, frames,
// plain and encrypted. The link opens only for who said the right greeting; a request ends, well or with an error.
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/base/signals.h"
#include "core/link/link.h"
#include "tests/fuzz/reached.h"
#include "tests/fuzz_links/hostile_member.h"

namespace {

using namespace deft::link;  // NOLINT(google-build-using-namespace): the links
using deft::fuzz::Bytes;
using deft::fuzz::HostileMember;
namespace model = deft::model;

constexpr std::size_t kFloats = 64;                            // of a sum: each member owns half of them
constexpr std::size_t kBytes = 128;                            // that each frame carries
constexpr std::size_t kRequests = 3;                           // all-reduce, all-gather, broadcast
enum Step : std::uint64_t { kScatter = 1, kGather, kBlocks };  // core/link/tcp/link_impl.cc

void require(bool holds) {
  if (!holds) std::abort();
}

WorkRequest request_of(unsigned choice, std::vector<std::byte>& data, std::uint32_t other) {
  data.assign(2 * kBytes, std::byte{});
  if (choice == 1) return WorkRequest::all_gather(data.data(), {kBytes, kBytes});
  if (choice == 2) return WorkRequest::broadcast(data.data(), kBytes, other);
  return WorkRequest::all_reduce(data.data(), kFloats, model::DType::kFloat32, model::ReduceOp::kSum);
}

std::uint64_t tag_of(Step step, const WorkRequest& request) {
  return step | static_cast<std::uint64_t>(request.dtype) << 8 | static_cast<std::uint64_t>(request.op) << 16 |
         static_cast<std::uint64_t>(request.kind) << 24;
}

void count_greeting(const HostileMember::Plan& plan) {
  static deft::fuzz::Reached reached("greetings of members (called, calls; plain, encrypted) that were believed", 4);
  reached.count((plan.tested_calls ? 1U : 0U) + (plan.encrypts ? 2U : 0U));
}

void count_request(const HostileMember::Plan& plan, unsigned request) {
  static deft::fuzz::Reached reached("requests of tcp links (sum, blocks, broadcast; plain, encrypted) that ended well",
                                     2 * kRequests);
  reached.count(request + (plan.encrypts ? kRequests : 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const deft::AllSignalsBlocked until_the_end;  // libFuzzer's alarm would cut waits short
  Bytes bytes({data, size});
  const auto plan = HostileMember::Plan::take(bytes);
  const unsigned choice = plan.request % kRequests;
  const auto hostile = std::make_shared<HostileMember>(plan, bytes);
  std::vector<std::byte> buffer;  // outlives the link, which writes there
  const auto link = open_worker_link({"tcp", "lo", "127.0.0.1"}, HostileMember::group(hostile));
  if (!link) return 0;
  require(hostile->has_greeted());
  count_greeting(plan);
  const WorkRequest request = request_of(choice, buffer, plan.tested_calls ? 0 : 1);
  const std::array<std::uint64_t, 2> sum{tag_of(kScatter, request), tag_of(kGather, request)};
  const std::array<std::uint64_t, 1> blocks{tag_of(kBlocks, request)};
  hostile->send_frames(request.reduces() ? std::span<const std::uint64_t>(sum) : blocks, kBytes);
  if ((*link)->run(request)) count_request(plan, choice);
  hostile->hang_up();
  return 0;
}
