#include "core/compress/encoded_sum.h"

#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/base/text.h"
#include "core/compress/registry.h"

namespace deft::compress {
namespace {

struct RecipeHeader {  // the codec's text and the runs follow
  std::uint64_t job = 0;
  std::uint64_t generation = 0;
  std::uint32_t runs = 0;
  std::uint32_t codec_bytes = 0;
};
static_assert(sizeof(RecipeHeader) == 24 && std::is_trivially_copyable_v<RecipeHeader>);

constexpr std::size_t kMostCodecBytes = 128;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 48;  // of an arena: sums of places never overflow

tl::unexpected<Error> unreadable(const std::string& why) {
  return fail(ErrorKind::kViolation, "what it says about its codes " + why);
}

Result<SumRecipe> parse(std::span<const std::byte> bytes) {
  RecipeHeader header;
  if (bytes.size() < sizeof header) return unreadable("is too short");
  std::memcpy(&header, bytes.data(), sizeof header);
  const std::size_t rest = bytes.size() - sizeof header;
  if (header.codec_bytes > kMostCodecBytes || header.codec_bytes > rest ||
      rest - header.codec_bytes != std::size_t{header.runs} * SumRecipe::kRunBytes)
    return unreadable("has another size than it tells");
  SumRecipe recipe{.codec = {}, .job = header.job, .generation = header.generation, .runs = {}};
  const std::byte* at = bytes.data() + sizeof header;
  recipe.codec.assign(reinterpret_cast<const char*>(at), header.codec_bytes);
  at += header.codec_bytes;
  recipe.runs.resize(header.runs);
  for (SumRecipe::Run& run : recipe.runs) {
    std::memcpy(&run.first, at, sizeof run.first);
    std::memcpy(&run.blocks, at + sizeof run.first, sizeof run.blocks);
    at += SumRecipe::kRunBytes;
  }
  return recipe;
}

// Runs of whole blocks that together have `code_bytes` bytes.
bool are_possible(const std::vector<SumRecipe::Run>& runs, const Traits& traits, std::size_t code_bytes) {
  std::size_t bytes = 0;
  for (const SumRecipe::Run& run : runs) {
    if (run.blocks == 0 || run.first >= kMostElements || run.first % traits.block_elements != 0) return false;
    bytes += run.blocks * traits.block_bytes;
    if (bytes > code_bytes) return false;
  }
  return bytes == code_bytes;
}

}  // namespace

std::vector<std::byte> SumRecipe::bytes() const {
  const RecipeHeader header{.job = job,
                            .generation = generation,
                            .runs = static_cast<std::uint32_t>(runs.size()),
                            .codec_bytes = static_cast<std::uint32_t>(codec.size())};
  std::vector<std::byte> bytes(sizeof header + codec.size() + runs.size() * kRunBytes);
  std::byte* at = bytes.data();
  std::memcpy(at, &header, sizeof header);
  at += sizeof header;
  std::memcpy(at, codec.data(), codec.size());
  at += codec.size();
  for (const Run& run : runs) {
    std::memcpy(at, &run.first, sizeof run.first);
    std::memcpy(at + sizeof run.first, &run.blocks, sizeof run.blocks);
    at += kRunBytes;
  }
  return bytes;
}

std::string SumRecipe::describe(std::span<const std::byte> recipe) {
  const auto parsed = parse(recipe);
  if (!parsed) return "an unknown codec";
  std::string text = readable(parsed->codec, kMostCodecBytes) + " of generation " + std::to_string(parsed->generation);
  if (!parsed->runs.empty()) text += " at element " + std::to_string(parsed->runs.front().first);
  return text;
}

Result<EncodedSum> EncodedSum::read(std::span<const std::byte> recipe, std::size_t code_bytes) {
  auto parsed = parse(recipe);
  if (!parsed) return tl::unexpected(parsed.error());
  auto codec = make_codec(parsed->codec);
  if (!codec) return unreadable("names no codec: " + codec.error().message());
  const Traits& traits = (*codec)->traits();
  const bool makes_blocks = traits.fixed_size && (traits.law == Law::kRequantised || traits.law == Law::kVoted);
  if (!makes_blocks || traits.takes_momentum)
    return unreadable("names " + std::string(traits.name) + ", whose codes are not added by blocks");
  if (!are_possible(parsed->runs, traits, code_bytes))
    return unreadable("does not fit " + std::to_string(code_bytes) + " bytes of " + std::string(traits.name));
  return EncodedSum(*std::move(codec), *std::move(parsed));
}

std::size_t EncodedSum::values() const {
  std::size_t blocks = 0;
  for (const SumRecipe::Run& run : recipe_.runs) blocks += run.blocks;
  return blocks * codec_->traits().block_elements;
}

template <typename Visit>
Result<void> EncodedSum::for_each_run(const Visit& visit) const {
  std::size_t value = 0, byte = 0;
  for (const SumRecipe::Run& run : recipe_.runs) {
    const Slice slice{.job = recipe_.job, .generation = recipe_.generation, .first = run.first};
    const std::size_t values = run.blocks * codec_->traits().block_elements;
    const std::size_t bytes = run.blocks * codec_->traits().block_bytes;
    if (auto ok = visit(slice, value, values, byte, bytes); !ok) return ok;
    value += values;
    byte += bytes;
  }
  return {};
}

Result<void> EncodedSum::combine(Inputs inputs, std::span<std::byte> out, std::size_t& garbage) const {
  std::vector<std::span<const std::byte>> codes(inputs.size());
  return for_each_run([&](const Slice& slice, std::size_t, std::size_t, std::size_t byte, std::size_t bytes) {
    for (std::size_t n = 0; n < inputs.size(); ++n) codes[n] = inputs[n].subspan(byte, bytes);
    return codec_->combine(slice, codes, out.subspan(byte, bytes), {}, garbage);
  });
}

// In the order of combine(), so that the sum has the bits of that one.
Result<void> EncodedSum::add(Inputs inputs, std::span<float> sum, std::size_t& garbage) const {
  return for_each_run([&](const Slice& slice, std::size_t value, std::size_t values, std::size_t byte,
                          std::size_t bytes) -> Result<void> {
    const std::span<float> part = sum.subspan(value, values);
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      garbage = n;
      const auto code = inputs[n].subspan(byte, bytes);
      auto ok = n == 0 ? codec_->decode(slice, code, part) : codec_->decode_add(slice, code, part);
      if (!ok) return ok;
    }
    garbage = 0;
    return {};
  });
}

Result<void> EncodedSum::encode(std::span<const float> sum, std::span<std::byte> out) const {
  return for_each_run([&](const Slice& slice, std::size_t value, std::size_t values, std::size_t byte,
                          std::size_t bytes) -> Result<void> {
    const auto used = codec_->encode(slice, sum.subspan(value, values), out.subspan(byte, bytes));
    if (!used) return tl::unexpected(used.error());
    return {};
  });
}

Result<void> encode_sum(const Codec& codec, const Slice& slice, std::span<const float> sum, std::span<std::byte> out,
                        std::span<float> left_out) {
  const auto used = codec.encode(slice, sum, out);
  if (!used) return tl::unexpected(used.error());
  if (left_out.empty()) return {};
  if (auto ok = codec.decode(slice, out.first(*used), left_out); !ok) return ok;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const float left = sum[i] - left_out[i];
    left_out[i] = std::isfinite(left) ? left : 0.0F;
  }
  return {};
}

}  // namespace deft::compress
