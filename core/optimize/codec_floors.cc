#include "core/optimize/codec_floors.h"

#include <algorithm>

namespace deft::optimize {
namespace {

constexpr std::uint64_t kKb = 1024;
constexpr std::uint64_t kLeastFloor = 64 * kKb, kMostFloor = 16'384 * kKb;

}  // namespace

std::optional<std::uint64_t> own_codec_floor(const replay::MeasuredJob& measured) {
  const auto config = replay::config_of(measured.options);
  if (!config || !measured.tensors) return std::nullopt;
  const auto tells = [](const trace::TraceGroup::Tensor& tensor) { return tensor.elements.has_value(); };
  if (!std::ranges::all_of(measured.tensors->group.tensors, tells)) return std::nullopt;
  return config->bytes("compression_min_bytes");
}

std::size_t encoded_tensors(const replay::MeasuredJob& measured, std::uint64_t floor_bytes) {
  if (!measured.tensors) return 0;
  const auto is_encoded = [&](const trace::TraceGroup::Tensor& tensor) {
    return tensor.elements && tensor.elements->coded_bytes > 0 && tensor.bytes >= floor_bytes;
  };
  return static_cast<std::size_t>(std::ranges::count_if(measured.tensors->group.tensors, is_encoded));
}

std::vector<std::uint64_t> codec_floors(const replay::MeasuredJob& measured, std::uint64_t above) {
  const auto own = own_codec_floor(measured);
  if (!own) return {};
  std::vector<std::uint64_t> floors;
  std::size_t encoded = encoded_tensors(measured, std::max(*own, above));
  for (std::uint64_t floor = kLeastFloor; floor <= kMostFloor; floor *= 4) {
    const std::size_t fewer = encoded_tensors(measured, floor);
    if (fewer >= encoded) continue;
    floors.push_back(floor);
    encoded = fewer;
  }
  return floors;
}

}  // namespace deft::optimize
