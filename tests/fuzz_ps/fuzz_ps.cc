// Feeds a parameter server's side of a link with pushes of two nodes. Each push begins as a good one, plain or encoded, and
// libFuzzer changes bytes of its header, its recipe and its payload. The link answers or fails, and nothing else happens.
//
// A push: a byte (node, kind of push, number of changes), and of each change the place in two bytes and the new value.
// It counts the kinds of pushes that were answered.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/compress/registry.h"
#include "core/link/ps/served_link.h"
#include "core/model/dtype.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/reached.h"

namespace {

using namespace deft::link::ps_backend;  // NOLINT(google-build-using-namespace): the server
namespace compress = deft::compress;

struct Push {
  PsHeader header;
  std::vector<std::byte> recipe, payload;
};

constexpr std::string_view kAddedByAll = "added by all";

Push good_push(const std::string& codec) {
  Push push;
  push.header.kind = Kind::kPush;
  push.header.nodes = 2;
  push.payload.resize(64);
  if (codec == kAddedByAll) push.header.keeper = kEveryNode;
  push.header.dtype = static_cast<std::uint8_t>(deft::model::DType::kFloat32);
  push.header.op = static_cast<std::uint8_t>(deft::model::ReduceOp::kSum);
  if (!codec.empty() && codec != kAddedByAll) {
    const auto made = compress::make_codec(codec).value();
    const std::vector<float> values(512, 1.0F);
    push.payload.resize(made->encoded_bytes(values.size()));
    static_cast<void>(made->encode({1, 2, 256}, values, push.payload));
    const auto blocks = static_cast<std::uint32_t>(256 / made->traits().block_elements);
    push.recipe = compress::SumRecipe{codec, 1, 2, {{256, blocks}, {4096, blocks}}}.bytes();
    push.header.dtype = static_cast<std::uint8_t>(deft::model::DType::kUInt8);
    push.header.recipe_bytes = static_cast<std::uint32_t>(push.recipe.size());
    if (made->traits().uses_feedback) push.header.keeper = 1;
  }
  push.header.bytes = push.header.total = push.payload.size();
  return push;
}

const std::array<Push, 8>& good_pushes() {
  static const std::array<Push, 8> pushes = {
      good_push(""),          good_push("int8"),    good_push("bf16"), good_push("int2"),
      good_push("efsignsgd"), good_push("signsgd"), good_push("qsgd"), good_push(std::string(kAddedByAll))};
  return pushes;
}

deft::fuzz::Reached& answered() {
  static deft::fuzz::Reached kinds("segments that a parameter server can add, by codec", good_pushes().size());
  return kinds;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  deft::fuzz::Bytes input({data, size});
  std::size_t failures = 0, codec = 0;
  ServedLink link(2, [&](std::uint32_t, const PsHeader& header, zmq::message_t& payload) {
    if (header.kind == Kind::kFailed) ++failures;
    if (header.kind == Kind::kResult) answered().count(codec);
    if (payload.size() > kMaxAnswerBytes) std::abort();
  });
  for (const std::uint32_t node : {0U, 1U})
    if (!link.join(node, 2)) std::abort();
  for (std::uint64_t number = 0; !input.empty() && number < 64; ++number) {
    const auto kind = input.take<std::uint8_t>();
    codec = (kind >> 1U) & 7U;
    Push push = good_pushes()[codec];
    push.header.round = number / 2;
    std::vector<std::byte> frame(sizeof push.header + push.recipe.size());
    std::memcpy(frame.data(), &push.header, sizeof push.header);
    std::ranges::copy(push.recipe, frame.begin() + sizeof push.header);
    for (unsigned changes = kind >> 4U; changes > 0; --changes) {
      const std::size_t at = input.take<std::uint16_t>() % (frame.size() + push.payload.size());
      (at < frame.size() ? frame[at] : push.payload[at - frame.size()]) = input.take<std::byte>();
    }
    const zmq::message_t first(frame.data(), frame.size());
    const auto header = header_of(first);
    if (!header || header->version != kVersion) continue;
    if (header->kind == Kind::kTaken) link.taken(kind & 1U, header->taken);
    if (header->kind == Kind::kPush)
      link.push(kind & 1U, *header, zmq::message_t(push.payload.data(), push.payload.size()), recipe_of(first));
  }
  if (failures != (link.failed() ? 2 : 0)) std::abort();
  return 0;
}
