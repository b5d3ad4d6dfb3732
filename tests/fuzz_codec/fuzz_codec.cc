// Feeds every codec's decoders with whatever libFuzzer makes up. The first byte chooses the codec and the kernel set, the next
// two the number of values; the rest is the encoding, or with the first byte's upper bit what is changed in a good one.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/compress/kernels.h"
#include "core/compress/registry.h"

namespace {

using namespace deft::compress;  // NOLINT(google-build-using-namespace): the codecs
using Bytes = std::vector<std::byte>;

constexpr Slice kSlice{.job = 1, .generation = 2, .first = 256};

void require(bool holds) {
  if (!holds) std::abort();
}

const std::vector<std::unique_ptr<const Codec>>& codecs() {
  static const auto all = [] {
    std::vector<std::unique_ptr<const Codec>> made;
    for (const CodecKernels* kernels : {&best_kernels(), &portable_kernels()}) {
      for (const std::string_view name : codec_names()) {
        auto codec = make_codec(name, *kernels).value();
        if (codec->traits().law != Law::kLowRank)
          made.push_back(std::move(codec));  // it has no decoder: sums are float32
      }
      made.push_back(make_codec("randk/ratio=0.1,unbiased=1", *kernels).value());
      made.push_back(make_codec("topk/ratio=0.5", *kernels).value());
    }
    return made;
  }();
  return all;
}

Bytes good_encoding(const Codec& codec, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i));
  Bytes code(codec.encoded_bytes_at(kSlice.generation, count));
  code.resize(codec.encode(kSlice, values, code).value());
  return code;
}

void check(const Codec& codec, const Bytes& code, std::size_t count) {
  std::vector<float> out(count), sum(count), left(count);
  const bool decodes = codec.decode(kSlice, code, out).has_value();
  require(codec.decode_add(kSlice, code, sum).has_value() == decodes);
  if (!codec.traits().fixed_size) return;
  const Bytes good = good_encoding(codec, count);
  const std::vector<std::span<const std::byte>> inputs{good, code};
  Bytes combined(good.size());
  std::size_t garbage = 7;
  require(codec.combine(kSlice, inputs, combined, left, garbage).has_value() == decodes);
  require(decodes || garbage == 1);
  // What an owner makes of garbage that decodes must decode, too.
  if (decodes) require(codec.decode(kSlice, combined, out).has_value());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const Codec& codec = *codecs()[(data[0] & 0x7FU) % codecs().size()];
  const std::size_t count = 1 + (data[1] | (std::size_t{data[2]} << 8)) % 1500;
  Bytes code;
  if ((data[0] & 0x80U) != 0) {
    code = good_encoding(codec, count);
    for (std::size_t i = 3; i + 2 < size; i += 3) {
      const std::size_t at = data[i] | (std::size_t{data[i + 1]} << 8);
      if (at < code.size()) code[at] = static_cast<std::byte>(data[i + 2]);
    }
  } else {
    code.resize(size - 3);
    if (size > 3) std::memcpy(code.data(), data + 3, size - 3);
  }
  check(codec, code, count);
  return 0;
}
