#include "core/compress/sparse_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

namespace deft::compress {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

constexpr char kMagic[4] = {'D', 'f', 'S', 'p'};
constexpr std::uint8_t kVersion = 1;

struct Header {
  char magic[4];
  std::uint8_t version;
  std::uint8_t id;
  std::uint8_t is_nan;
  std::uint8_t zero;
  std::uint32_t elements;
  std::uint32_t entries;
};
static_assert(sizeof(Header) == kSparseHeaderBytes);

template <typename T>
T load(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof value, sizeof value);
  return value;
}

void write_header(SparseId id, bool is_nan, std::size_t elements, std::size_t entries, std::byte* out) {
  Header header{{},
                kVersion,
                static_cast<std::uint8_t>(id),
                static_cast<std::uint8_t>(is_nan ? 1 : 0),
                0,
                static_cast<std::uint32_t>(elements),
                static_cast<std::uint32_t>(entries)};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  std::memcpy(out, &header, sizeof header);
}

tl::unexpected<Error> garbage(const std::string& what) {
  return fail(ErrorKind::kViolation, "a sparse encoding " + what);
}

Result<void> check(const Header& header, SparseId id, std::size_t bytes, std::size_t elements) {
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) return garbage("does not begin with DfSp");
  if (header.version != kVersion) return garbage("has version " + std::to_string(header.version) + ", not 1");
  if (header.id != static_cast<std::uint8_t>(id)) return garbage("is of codec " + std::to_string(header.id));
  if (header.is_nan > 1 || header.zero != 0) return garbage("has an unknown flag");
  if (header.elements != elements)
    return garbage("is of " + std::to_string(header.elements) + " values, not " + std::to_string(elements));
  if (header.entries > header.elements || (header.is_nan == 1 && header.entries > 0))
    return garbage("claims " + std::to_string(header.entries) + " entries");
  if (bytes != kSparseHeaderBytes + std::size_t{header.entries} * kSparseEntryBytes)
    return garbage("of " + std::to_string(header.entries) + " entries has " + std::to_string(bytes) + " bytes");
  return {};
}

Result<void> check_entries(const SparseCode& code, std::size_t elements) {
  std::uint64_t least = 0;
  for (std::size_t i = 0; i < code.entries; ++i) {
    const auto index = load<std::uint32_t>(code.indices, i);
    if (index < least || index >= elements) return garbage("has the index " + std::to_string(index) + " out of order");
    least = std::uint64_t{index} + 1;
    if (!std::isfinite(load<float>(code.values, i))) return garbage("has a value that is not finite");
  }
  return {};
}

}  // namespace

std::size_t write_sparse(SparseId id, std::span<const float> values, std::span<const std::uint32_t> indices,
                         std::span<std::byte> out) {
  write_header(id, false, values.size(), indices.size(), out.data());
  std::byte* at = out.data() + kSparseHeaderBytes;
  if (!indices.empty()) std::memcpy(at, indices.data(), indices.size_bytes());
  at += indices.size_bytes();
  for (const std::uint32_t index : indices) {
    std::memcpy(at, &values[index], sizeof(float));
    at += sizeof(float);
  }
  return static_cast<std::size_t>(at - out.data());
}

std::size_t write_sparse_nan(SparseId id, std::size_t elements, std::span<std::byte> out) {
  write_header(id, true, elements, 0, out.data());
  return kSparseHeaderBytes;
}

bool is_sparse_nan(std::span<const std::byte> in) {
  return in.size() >= kSparseHeaderBytes && in[offsetof(Header, is_nan)] != std::byte{};
}

Result<SparseCode> read_sparse(SparseId id, std::span<const std::byte> in, std::size_t elements) {
  if (elements == 0 && in.empty()) return SparseCode{};
  if (in.size() < kSparseHeaderBytes) return garbage("has only " + std::to_string(in.size()) + " bytes");
  Header header{};
  std::memcpy(&header, in.data(), sizeof header);
  if (auto ok = check(header, id, in.size(), elements); !ok) return tl::unexpected(ok.error());
  const std::byte* const indices = in.data() + kSparseHeaderBytes;
  const SparseCode code{header.is_nan == 1, header.entries, indices, indices + header.entries * sizeof(std::uint32_t)};
  if (auto ok = check_entries(code, elements); !ok) return tl::unexpected(ok.error());
  return code;
}

void add_sparse(const SparseCode& code, std::span<float> sum) {
  if (code.is_nan) std::ranges::fill(sum, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < code.entries; ++i)
    sum[load<std::uint32_t>(code.indices, i)] += load<float>(code.values, i);
}

}  // namespace deft::compress
