#include "core/compress/registry.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/compress/block_codec.h"
#include "core/compress/low_rank_codec.h"
#include "core/compress/parameters.h"
#include "core/compress/sparse_codec.h"

namespace deft::compress {
namespace {

using Made = Result<std::unique_ptr<const Codec>>;
using Maker = Made (*)(std::string_view name, Parameters& given, const CodecKernels& kernels);

Traits contractive(std::string_view name, std::size_t block_elements, std::size_t block_bytes) {
  Traits traits;
  traits.name = name;
  traits.contractive = traits.uses_feedback = true;
  traits.block_elements = block_elements;
  traits.block_bytes = block_bytes;
  return traits;
}

// Checks that all parameters were read, and writes them into the traits.
Made finish(const Parameters& given, Traits traits, const BlockCodec::Settings& settings, const CodecKernels& kernels) {
  if (auto ok = given.finish(traits.name); !ok) return tl::unexpected(ok.error());
  traits.parameters = given.canonical();
  return std::make_unique<BlockCodec>(std::move(traits), settings, kernels);
}

template <BlockFormat kFormat, std::size_t kElements, std::size_t kBytes>
Made make_contractive(std::string_view name, Parameters& given, const CodecKernels& kernels) {
  return finish(given, contractive(name, kElements, kBytes), {.format = kFormat}, kernels);
}

Made make_vote(std::string_view name, Parameters& given, const CodecKernels& kernels) {
  Traits traits;
  traits.name = name;
  traits.law = Law::kVoted;
  traits.takes_momentum = name == "signum";
  traits.block_bytes = 4 + kBlock / 8;
  BlockCodec::Settings settings{.format = BlockFormat::kVote};
  if (traits.takes_momentum) settings.momentum = static_cast<float>(given.number("momentum", 0.9, 0, 0.9999));
  return finish(given, std::move(traits), settings, kernels);
}

constexpr std::uint64_t kMostSeed = ~std::uint64_t{};

template <BlockFormat kFormat, std::size_t kBytes>
Made make_unbiased(std::string_view name, Parameters& given, const CodecKernels& kernels) {
  Traits traits;
  traits.name = name;
  traits.unbiased = true;
  traits.block_bytes = kBytes;
  BlockCodec::Settings settings{.format = kFormat};
  if (kFormat == BlockFormat::kQsgd) settings.level = static_cast<std::uint32_t>(given.integer("levels", 64, 1, 127));
  settings.seed = given.integer("seed", 0, 0, kMostSeed);
  return finish(given, std::move(traits), settings, kernels);
}

Made make_randk(std::string_view name, Parameters& given, const CodecKernels& kernels) {
  const double ratio = given.number("ratio", 0.01, 1.0 / kBlock, 1);
  const bool unbiased = given.integer("unbiased", 0, 0, 1) == 1;
  BlockCodec::Settings settings{.format = unbiased ? BlockFormat::kWholeRandk : BlockFormat::kRandk,
                                .shares_choice = true};
  settings.seed = given.integer("seed", 0, 0, kMostSeed);
  settings.level = static_cast<std::uint32_t>(std::lround(ratio * kBlock));
  Traits traits;
  traits.name = name;
  traits.unbiased = unbiased;
  traits.contractive = traits.uses_feedback = traits.delays_values = !unbiased;
  traits.block_bytes = settings.level * sizeof(float);
  return finish(given, std::move(traits), settings, kernels);
}

Made make_sparse(std::string_view name, Parameters& given, const CodecKernels& kernels) {
  const bool is_dgc = name == "dgc";
  SparseCodec::Settings settings{.id = is_dgc ? SparseId::kDgc : SparseId::kTopk};
  settings.ratio = given.number("ratio", is_dgc ? 0.001 : 0.01, 1e-6, 1);
  if (is_dgc) {
    settings.momentum = static_cast<float>(given.number("momentum", 0.9, 0, 0.9999));
    settings.warmup = given.integer("warmup", 0, 0, 1'000'000'000);
  }
  Traits traits = contractive(name, 1, 0);
  traits.law = Law::kSparse;
  traits.delays_values = true;
  traits.fixed_size = false;
  traits.takes_momentum = is_dgc;
  if (auto ok = given.finish(name); !ok) return tl::unexpected(ok.error());
  traits.parameters = given.canonical();
  return std::make_unique<SparseCodec>(std::move(traits), settings, kernels);
}

Made make_low_rank(std::string_view name, Parameters& given, const CodecKernels& /*kernels*/) {
  static constexpr std::array<std::string_view, 2> kMethods = {"acp", "powersgd"};
  const std::size_t rank = given.integer("rank", 4, 1, kMostRank);
  const auto method =
      given.choice("method", kMethods) == kMethods[0] ? LowRankMethod::kAcpSgd : LowRankMethod::kPowerSgd;
  Traits traits = contractive(name, 1, 0);
  traits.law = Law::kLowRank;
  traits.fixed_size = false;
  if (auto ok = given.finish(name); !ok) return tl::unexpected(ok.error());
  traits.parameters = given.canonical();
  return std::make_unique<LowRankCodec>(std::move(traits), rank, method);
}

struct Row {
  std::string_view name;
  Maker make;
};

constexpr std::array kRows = {
    Row{"bf16", make_contractive<BlockFormat::kBFloat16, 1, 2>},
    Row{"fp16", make_contractive<BlockFormat::kFloat16, 1, 2>},
    Row{"int8", make_contractive<BlockFormat::kInt8, kBlock, 2 + 256>},
    Row{"int4", make_contractive<BlockFormat::kInt4, kBlock, 2 + 128>},
    Row{"int2", make_contractive<BlockFormat::kInt2, kBlock, 4 + 64>},
    Row{"efsignsgd", make_contractive<BlockFormat::kSign, kBlock, 4 + 32>},
    Row{"onebit", make_contractive<BlockFormat::kOneBit, kBlock, 8 + 32>},
    Row{"signsgd", make_vote},
    Row{"signum", make_vote},
    Row{"topk", make_sparse},
    Row{"dgc", make_sparse},
    Row{"randk", make_randk},
    Row{"lowrank", make_low_rank},
    Row{"terngrad", make_unbiased<BlockFormat::kTernGrad, 4 + 64>},
    Row{"qsgd", make_unbiased<BlockFormat::kQsgd, 2 + 256>},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kRows.size()> names;
  std::ranges::transform(kRows, names.begin(), &Row::name);
  return names;
}();

}  // namespace

std::span<const std::string_view> codec_names() { return kNames; }

std::string text_of(const Codec& codec) {
  const Traits& traits = codec.traits();
  return std::string(traits.name) + (traits.parameters.empty() ? "" : "/" + traits.parameters);
}

Made make_codec(std::string_view text, const CodecKernels& kernels) {
  const std::string_view name = text.substr(0, text.find('/'));
  const auto* const row = std::ranges::find(kRows, name, &Row::name);
  if (row == kRows.end()) {
    return fail(ErrorKind::kInvalid, "no codec is called '" + readable(name, 40) + "'",
                did_you_mean(name, kNames, "choose " + joined(kNames, ", ")));
  }
  Parameters given(name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view{});
  return row->make(row->name, given, kernels);  // not `name`, which ends with `text`
}

Made make_codec(std::string_view text) { return make_codec(text, best_kernels()); }

const Codec* codec_of(model::DType dtype) {
  static const std::unique_ptr<const Codec> bf16 = make_codec("bf16").value(), fp16 = make_codec("fp16").value();
  if (dtype == model::DType::kBFloat16) return bf16.get();
  return dtype == model::DType::kFloat16 ? fp16.get() : nullptr;
}

const CodecKernels& best_kernels() {
  static const CodecKernels& best = avx512_kernels() != nullptr ? *avx512_kernels()
                                    : avx2_kernels() != nullptr ? *avx2_kernels()
                                                                : portable_kernels();
  return best;
}

}  // namespace deft::compress
