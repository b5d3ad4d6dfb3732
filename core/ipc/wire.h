// Builds and reads the messages of messages.h: a fixed struct, and 0-terminated texts behind it.
//
//   auto bytes = encode(Hello{...}, {"job", "host:1"});
//   auto hello = decode<Hello>(packet.bytes, MessageKind::kHello, 4);   // checks kind, version, length and 4 texts
#pragma once

#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/ipc/messages.h"

namespace deft::ipc {

// A message that was read.
template <typename Fixed>
struct Decoded {
  Fixed fixed;
  std::vector<std::string> texts;
  std::span<const std::byte>
      tail;  // the bytes behind the texts, for messages that carry an array; points into the packet
};

// A message of kind `kind`; fills in the header.
template <typename Fixed>
std::vector<std::byte> encode(Fixed fixed, MessageKind kind, std::span<const std::string_view> texts = {},
                              std::span<const std::byte> tail = {}) {
  std::size_t bytes = sizeof(Fixed) + tail.size();
  for (const auto text : texts) bytes += text.size() + 1;
  fixed.header = MessageHeader{kProtocolMagic, kind, static_cast<std::uint32_t>(bytes), kProtocolVersion};
  std::vector<std::byte> out(bytes);
  std::memcpy(out.data(), &fixed, sizeof(Fixed));
  std::size_t at = sizeof(Fixed);
  for (const auto text : texts) {
    if (!text.empty()) std::memcpy(out.data() + at, text.data(), text.size());
    at += text.size() + 1;
  }
  if (!tail.empty()) std::memcpy(out.data() + at, tail.data(), tail.size());
  return out;
}

template <typename Fixed>
std::vector<std::byte> encode(const Fixed& fixed, MessageKind kind, std::initializer_list<std::string_view> texts) {
  return encode(fixed, kind, std::span<const std::string_view>(texts.begin(), texts.size()));
}

// The header of a packet. kViolation if the packet is not Deft's; kMismatch, which names both versions, for another version.
inline Result<MessageHeader> decode_header(std::span<const std::byte> bytes) {
  MessageHeader header;
  if (bytes.size() < sizeof header || bytes.size() > kMaxMessageBytes)
    return fail(ErrorKind::kViolation, "a message of " + std::to_string(bytes.size()) + " bytes");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kProtocolMagic || header.bytes != bytes.size())
    return fail(ErrorKind::kViolation, "a message that is not Deft's");
  if (header.version != kProtocolVersion)
    return fail(ErrorKind::kMismatch,
                "the other side speaks protocol version " + std::to_string(header.version) + ", this one " +
                    std::to_string(kProtocolVersion),
                "install the same version of Deft for the daemon and the workers");
  return header;
}

// Reads a message of kind `kind` with `texts` texts. kViolation if the packet is not of that kind, too short, or without them.
template <typename Fixed>
Result<Decoded<Fixed>> decode(std::span<const std::byte> bytes, MessageKind kind, std::size_t texts) {
  auto header = decode_header(bytes);
  if (!header) return tl::unexpected(header.error());
  if (header->kind != kind || bytes.size() < sizeof(Fixed))
    return fail(ErrorKind::kViolation, "a message of kind " + std::to_string(static_cast<unsigned>(header->kind)) +
                                           " and " + std::to_string(bytes.size()) + " bytes where another was due");
  Decoded<Fixed> out;
  std::memcpy(&out.fixed, bytes.data(), sizeof(Fixed));
  std::size_t at = sizeof(Fixed);
  for (std::size_t i = 0; i < texts; ++i) {
    const auto* begin = reinterpret_cast<const char*>(bytes.data()) + at;
    const auto* end = static_cast<const char*>(std::memchr(begin, 0, bytes.size() - at));
    if (at >= bytes.size() || end == nullptr) return fail(ErrorKind::kViolation, "a text without an end");
    out.texts.emplace_back(begin, end);
    at += out.texts.back().size() + 1;
  }
  out.tail = bytes.subspan(at);
  return out;
}

}  // namespace deft::ipc
