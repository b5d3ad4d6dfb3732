// Every message of the socket, from any bytes: what decodes lies within the packet.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "core/ipc/wire.h"
#include "tests/fuzz/reached.h"

namespace {

using namespace deft::ipc;

constexpr auto kKinds = static_cast<std::uint32_t>(MessageKind::kTrace);  // they count from 1

deft::fuzz::Reached& reached() {
  static deft::fuzz::Reached kinds("messages of the unix socket that can be read", kKinds);
  return kinds;
}

template <typename Message>
void check(std::span<const std::byte> bytes, MessageKind kind, std::size_t texts) {
  const auto message = decode<Message>(bytes, kind, texts);
  if (!message) return;
  reached().count(static_cast<std::size_t>(kind) - 1);
  std::size_t total = sizeof(Message) + message->tail.size();
  for (const auto& text : message->texts) total += text.size() + 1;
  if (message->texts.size() != texts || total != bytes.size()) std::abort();
  if (!message->tail.empty() && message->tail.data() + message->tail.size() != bytes.data() + bytes.size())
    std::abort();
}

void check_all(std::span<const std::byte> bytes) {
  const auto header = decode_header(bytes);
  if (header && (header->kind == MessageKind::kStatus || header->kind == MessageKind::kGoodbye))
    reached().count(static_cast<std::size_t>(header->kind) - 1);  // they are nothing but a header
  check<Hello>(bytes, MessageKind::kHello, 4);
  check<Welcome>(bytes, MessageKind::kWelcome, 0);
  check<Declare>(bytes, MessageKind::kDeclare, 1);
  check<DeclareTensor>(bytes, MessageKind::kDeclareTensor, 2);
  check<Declared>(bytes, MessageKind::kDeclared, 0);
  check<StagingBuffer>(bytes, MessageKind::kStagingBuffer, 0);
  check<StagingBuffer>(bytes, MessageKind::kStagingBufferMade, 0);
  check<StagingBuffer>(bytes, MessageKind::kFreeStagingBuffer, 0);
  check<Operation>(bytes, MessageKind::kOperation, 2);
  check<ErrorMessage>(bytes, MessageKind::kError, 3);
  check<Text>(bytes, MessageKind::kText, 1);
  check<Statistics>(bytes, MessageKind::kStatistics, 0);
  check<LinkMessage>(bytes, MessageKind::kLink, 4);
  check<StoreItem>(bytes, MessageKind::kStoreSet, 1);
  check<StoreItem>(bytes, MessageKind::kStoreGet, 1);
  check<StoreItem>(bytes, MessageKind::kStoreValue, 1);
  check<ChangeSettings>(bytes, MessageKind::kChangeSettings, 2);
  check<TraceRequest>(bytes, MessageKind::kTrace, 2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  // A copy of exactly this size, so that a read beyond it is found.
  std::vector<std::byte> packet(bytes);
  if (bytes > 0) std::memcpy(packet.data(), data, bytes);
  check_all(packet);
  if (bytes < sizeof(MessageHeader)) return 0;
  // With a header that is right but for its kind, the fuzzer comes to the rest at once.
  MessageHeader header;
  std::memcpy(&header, packet.data(), sizeof header);
  header.magic = kProtocolMagic;
  header.version = kProtocolVersion;
  header.bytes = static_cast<std::uint32_t>(bytes);
  header.kind = static_cast<MessageKind>(static_cast<std::uint32_t>(header.kind) % (kKinds + 1));
  std::memcpy(packet.data(), &header, sizeof header);
  check_all(packet);
  return 0;
}
