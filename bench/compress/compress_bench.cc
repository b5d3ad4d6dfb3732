// How near the codecs come to memcpy.
//
// Each row runs in turn with memcpy of the same floats, so that other load on the machine meets both alike. `GB/s` counts the
// bytes of the floats, and so does `memcpy GB/s`; `of_memcpy` is the ratio of the two. `wire` is the bytes of an encoding over
// those of the floats. Aim: 0.5 of memcpy for encode and decode_add of int8, int4, bf16, fp16 and signs, and 3 GB/s for topk
// and dgc. "encode with feedback" of dgc and signum moves their momentum, too.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/processor_time.h"
#include "core/compress/kernels.h"
#include "core/compress/registry.h"

namespace deft::compress {
namespace {

constexpr std::size_t kNodes = 4;  // of a combine

using bench::seconds;

enum class Call : std::uint8_t { kEncode, kFeedback, kDecode, kDecodeAdd, kCombine };

// A codec, and all that its calls need.
class Workload {
 public:
  Workload(const std::string& text, const CodecKernels& kernels, std::size_t elements)
      : codec_(make_codec(text, kernels).value()), values_(elements), copy_(elements, 1.0F), momentum_(elements) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& value : values_) value = normal(random);
    code_.resize(codec_->encoded_bytes(elements));
    used_ = codec_->encode(slice_, values_, code_).value();
    if (codec_->traits().fixed_size) codes_.assign(kNodes, code_);
    inputs_.assign(codes_.begin(), codes_.end());
    left_out_.resize(elements);
    if (codec_->traits().uses_feedback) residual_.resize(elements);
  }

  [[nodiscard]] const Codec& codec() const { return *codec_; }
  [[nodiscard]] double wire() const { return static_cast<double>(used_) / static_cast<double>(bytes()); }
  [[nodiscard]] std::size_t bytes() const { return values_.size() * sizeof(float); }

  void copy() { benchmark::DoNotOptimize(std::memcpy(copy_.data(), values_.data(), bytes())); }
  bool run(Call call) {
    const auto in = std::span<const std::byte>(code_).first(used_);
    std::size_t garbage = 0;
    slice_.generation += call == Call::kFeedback ? 1 : 0;
    switch (call) {
      case Call::kEncode: return codec_->encode(slice_, values_, code_).has_value();
      case Call::kFeedback:
        return codec_->encode_with_momentum(slice_, values_, momentum_, residual_, code_).has_value();
      case Call::kDecode: return codec_->decode(slice_, in, copy_).has_value();
      case Call::kDecodeAdd: return codec_->decode_add(slice_, in, copy_).has_value();
      case Call::kCombine: return codec_->combine(slice_, inputs_, code_, left_out_, garbage).has_value();
    }
    return false;
  }

 private:
  std::unique_ptr<const Codec> codec_;
  Slice slice_{.job = 1, .generation = 1, .first = 0};
  std::vector<float> values_, copy_, residual_, momentum_, left_out_;
  std::vector<std::byte> code_;
  std::vector<std::vector<std::byte>> codes_;
  std::vector<std::span<const std::byte>> inputs_;
  std::size_t used_ = 0;
};

void measure(benchmark::State& state, const std::string& text, Call call, const CodecKernels& kernels) {
  Workload workload(text, kernels, static_cast<std::size_t>(state.range(0)) / sizeof(float));
  double coded = 1e9, copied = 1e9;
  for (auto _ : state) {
    for (int i = 0; i < 5; ++i) {
      copied = std::min(copied, seconds([&] { workload.copy(); }));
      bool ok = true;
      coded = std::min(coded, seconds([&] { ok = workload.run(call); }));
      if (!ok) state.SkipWithError("the codec failed");
    }
  }
  const auto bytes = static_cast<double>(workload.bytes());
  state.counters["GB/s"] = bytes / coded / 1e9;
  state.counters["memcpy GB/s"] = bytes / copied / 1e9;
  state.counters["of_memcpy"] = copied / coded;
  state.counters["wire"] = workload.wire();
}

void add_rows(const std::string& set, const CodecKernels& kernels) {
  const std::map<Call, std::string> calls{{Call::kEncode, "encode"},
                                          {Call::kFeedback, "encode with feedback"},
                                          {Call::kDecode, "decode"},
                                          {Call::kDecodeAdd, "decode_add"},
                                          {Call::kCombine, "combine of 4"}};
  for (const std::string_view name : codec_names())
    for (const auto& [call, words] : calls) {
      const std::string text(name);
      const Traits traits = make_codec(text).value()->traits();
      if (traits.law == Law::kLowRank || (call == Call::kCombine && !traits.fixed_size)) continue;
      const auto run = [text, call = call, &kernels](benchmark::State& state) { measure(state, text, call, kernels); };
      benchmark::RegisterBenchmark((text + "/" + words + "/" + set).c_str(), run)
          ->Arg(1 << 20)
          ->Arg(64 << 20)
          ->Unit(benchmark::kMillisecond)
          ->Iterations(3);
    }
}

}  // namespace
}  // namespace deft::compress

int main(int argc, char** argv) {
  using namespace deft::compress;  // NOLINT(google-build-using-namespace): a program
  if (avx512_kernels() != nullptr) add_rows("avx512", *avx512_kernels());
  if (avx2_kernels() != nullptr) add_rows("avx2", *avx2_kernels());
  add_rows("portable", portable_kernels());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
