// Codecs by name, as users write them: NAME[/key=value[,key=value]], for instance int8 or topk/ratio=0.01.
//
//   auto codec = make_codec("topk/ratio=0.01");          // the caller owns it
//   if (!codec) return tl::unexpected(codec.error());    // the error names the fault, and the nearest name
//
// Any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/compress/codec.h"
#include "core/model/dtype.h"

namespace deft::compress {

struct CodecKernels;

// kInvalid for a name or key that does not exist, with the nearest one that does, and for a value out of its range.
Result<std::unique_ptr<const Codec>> make_codec(std::string_view text);

// The same with the kernels of one instruction set, which tests compare.
Result<std::unique_ptr<const Codec>> make_codec(std::string_view text, const CodecKernels& kernels);

// The codec's name/parameters, as make_codec takes them.
std::string text_of(const Codec& codec);

// The codec that writes elements of this type as they lie in an arena: bf16 for bfloat16, fp16 for float16. Null for all other
// types. It lives as long as the process.
const Codec* codec_of(model::DType dtype);

// All names, in the order in which documentation lists them.
std::span<const std::string_view> codec_names();

}  // namespace deft::compress
