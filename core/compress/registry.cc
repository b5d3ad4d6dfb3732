#include "core/compress/registry.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "core/compress/block_codec.h"
#include "core/compress/parameters.h"

namespace deft::compress {
namespace {

using Made = Result<std::unique_ptr<const Codec>>;
using Maker = Made (*)(std::string_view name, Parameters& given, const KernelTable& kernels);

Traits contractive(std::string_view name, std::size_t block_elements, std::size_t block_bytes) {
  Traits traits;
  traits.name = name;
  traits.contractive = traits.uses_feedback = true;
  traits.block_elements = block_elements;
  traits.block_bytes = block_bytes;
  return traits;
}

// Checks that all parameters were read, and writes them into the traits.
Made finish(const Parameters& given, Traits traits, const BlockCodec::Settings& settings, const KernelTable& kernels) {
  if (auto ok = given.finish(traits.name); !ok) return tl::unexpected(ok.error());
  traits.parameters = given.canonical();
  return std::make_unique<BlockCodec>(std::move(traits), settings, kernels);
}

template <BlockFormat kFormat, std::size_t kElements, std::size_t kBytes>
Made make_contractive(std::string_view name, Parameters& given, const KernelTable& kernels) {
  return finish(given, contractive(name, kElements, kBytes), {.format = kFormat}, kernels);
}

struct Row {
  std::string_view name;
  Maker make;
};

constexpr std::array kRows = {
    Row{"bf16", make_contractive<BlockFormat::kBFloat16, 1, 2>},
    Row{"fp16", make_contractive<BlockFormat::kFloat16, 1, 2>},
    Row{"int8", make_contractive<BlockFormat::kInt8, kBlock, 4 + 256>},
    Row{"int4", make_contractive<BlockFormat::kInt4, kBlock, 4 + 128>},
    Row{"int2", make_contractive<BlockFormat::kInt2, kBlock, 4 + 64>},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kRows.size()> names;
  std::ranges::transform(kRows, names.begin(), &Row::name);
  return names;
}();

}  // namespace

std::span<const std::string_view> codec_names() { return kNames; }

Made make_codec(std::string_view text, const KernelTable& kernels) {
  const std::string_view name = text.substr(0, text.find('/'));
  const auto* const row = std::ranges::find(kRows, name, &Row::name);
  if (row == kRows.end()) {
    const std::string_view meant = closest(name, kNames);
    std::string all;
    for (const std::string_view known : kNames) all.append(all.empty() ? "choose " : ", ").append(known);
    return fail(ErrorKind::kInvalid, "no codec is called '" + readable(name, 40) + "'",
                meant.empty() ? all : "did you mean " + std::string(meant) + "?");
  }
  Parameters given(name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view{});
  return row->make(name, given, kernels);
}

Made make_codec(std::string_view text) { return make_codec(text, best_kernels()); }

const KernelTable& best_kernels() {
  static const KernelTable& best = avx512_kernels() != nullptr ? *avx512_kernels()
                                   : avx2_kernels() != nullptr ? *avx2_kernels()
                                                               : portable_kernels();
  return best;
}

}  // namespace deft::compress
