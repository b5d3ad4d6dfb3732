#include "daemon/wire/codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <unordered_set>

#include "core/base/text.h"
#include "daemon/wire/decoding.h"

namespace deft::daemon::wire {

struct Received::Body {
  proto::Envelope envelope;
};

Received::Received(std::unique_ptr<Body> body) : body_(std::move(body)) {}
Received::~Received() = default;
Received::Received(Received&&) noexcept = default;
Received& Received::operator=(Received&&) noexcept = default;

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr std::size_t kMaxRefusalBytes = 4 * kMaxTextBytes;

constexpr std::uint32_t tag_of(int field, WireFormatLite::WireType type) {
  return WireFormatLite::MakeTag(field, type);
}

struct Outline {
  std::string job;
  std::uint64_t incarnation = 0, version = 0;
  bool has_refusal = false;
};

bool read_field(CodedInputStream& in, std::uint32_t tag, Outline& outline) {
  constexpr auto kVarint = WireFormatLite::WIRETYPE_VARINT;
  constexpr auto kBytes = WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
  if (tag == tag_of(proto::Envelope::kVersionFieldNumber, kVarint)) return in.ReadVarint64(&outline.version);
  if (tag == tag_of(proto::Envelope::kIncarnationFieldNumber, kVarint)) return in.ReadVarint64(&outline.incarnation);
  if (tag == tag_of(proto::Envelope::kJobFieldNumber, kBytes)) return WireFormatLite::ReadBytes(&in, &outline.job);
  outline.has_refusal |= tag == tag_of(proto::Envelope::kRefusalFieldNumber, kBytes);
  return WireFormatLite::SkipField(&in, tag);
}

Result<Outline> outline_of(std::span<const std::byte> bytes) {
  CodedInputStream in(reinterpret_cast<const std::uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  Outline outline;
  while (const std::uint32_t tag = in.ReadTag())
    if (!read_field(in, tag, outline)) return fail(ErrorKind::kViolation, "a message that cannot be read");
  const bool is_short = !outline.has_refusal || bytes.size() <= kMaxRefusalBytes;
  if (!in.ConsumedEntireMessage() || !is_short) return fail(ErrorKind::kViolation, "a message that cannot be read");
  return outline;
}

Result<Header> header_of(const Outline& outline) {
  Checks checks;
  Header header{.job = checks.text(outline.job, {nullptr, "job"}, kMaxNameBytes),
                .incarnation = outline.incarnation,
                .version = static_cast<std::uint32_t>(outline.version)};
  if (checks.failed()) return tl::unexpected(*checks.error());
  return header;
}

}  // namespace

Result<Header> header_of(std::span<const std::byte> bytes) {
  const auto outline = outline_of(bytes);
  if (!outline) return tl::unexpected(outline.error());
  return header_of(*outline);
}

Result<Received> Received::parse(std::span<const std::byte> bytes) {
  const auto outline = outline_of(bytes);
  if (!outline) return tl::unexpected(outline.error());
  auto header = header_of(*outline);
  if (!header) return tl::unexpected(header.error());
  auto body = std::make_unique<Body>();
  const bool counts = header->version == kControlVersion || outline->has_refusal;
  if (counts && !body->envelope.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return fail(ErrorKind::kViolation, "a message that cannot be read");
  Received received(std::move(body));
  received.header_ = *std::move(header);
  return received;
}

bool Received::is_refusal() const { return body_->envelope.has_refusal(); }

bool Received::is_join() const { return body_->envelope.has_to_leader() && body_->envelope.to_leader().has_join(); }

JobOwner Received::joining_owner() const {
  const auto& join = body_->envelope.to_leader().join();
  return {join.user(), join.token()};
}

// In a time that does not depend on where two tokens differ.
bool JobOwner::admits(const JobOwner& other) const {
  if (token.empty() && other.token.empty()) return user == other.user;
  if (token.size() != other.token.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < token.size(); ++i)
    difference |= static_cast<unsigned char>(token[i]) ^ static_cast<unsigned char>(other.token[i]);
  return difference == 0;
}

Error Received::refusal() const {
  Checks checks;  // of a version that is not known: its kind may be new
  Error error = read_error(body_->envelope.refusal(), {nullptr, "refusal"}, checks);
  if (checks.failed()) error.kind = ErrorKind::kMismatch;
  return error;
}

Result<ToLeader> Received::to_leader(const LeaderFacts& facts) const {
  if (!body_->envelope.has_to_leader()) return fail(ErrorKind::kViolation, "to_leader: missing");
  return decode(body_->envelope.to_leader(), facts);
}

Result<ToNode> Received::to_node(const NodeFacts& facts) const {
  if (!body_->envelope.has_to_node()) return fail(ErrorKind::kViolation, "to_node: missing");
  return decode(body_->envelope.to_node(), facts);
}

Error read_error(const proto::Failure& from, const Field& at, Checks& checks) {
  return {read_enum(from.kind(), ErrorKind::kInvalid, ErrorKind::kInternal, {&at, "kind"}, checks),
          readable(from.what(), kMaxTextBytes), readable(from.fix(), kMaxTextBytes),
          readable(from.where(), kMaxTextBytes)};
}

std::vector<LinkAddress> read_links(const google::protobuf::RepeatedPtrField<proto::LinkAddress>& from, const Field& at,
                                    Checks& checks) {
  std::vector<LinkAddress> links;
  checks.size(static_cast<std::size_t>(from.size()), 0, kMaxLinks, at);
  for (int i = 0; i < from.size() && !checks.failed(); ++i) {
    const Field item{at.parent, at.name, i};
    links.push_back({checks.name(from[i].name(), {&item, "name"}, kMaxLongNameBytes),
                     checks.text(from[i].address(), {&item, "address"}, kMaxLongNameBytes)});
  }
  return links;
}

std::vector<std::uint32_t> read_ranks(const google::protobuf::RepeatedField<std::uint32_t>& from, std::uint32_t world,
                                      const Field& at, Checks& checks) {
  checks.size(static_cast<std::size_t>(from.size()), 1, kMaxLocalSize, at);
  if (checks.failed()) return {};
  std::unordered_set<std::uint32_t> seen;
  for (int i = 0; i < from.size(); ++i) {
    const Field item{at.parent, at.name, i};
    checks.below(from[i], world, item, "ranks");
    checks.require(seen.insert(from[i]).second, item,
                   [&] { return "rank " + std::to_string(from[i]) + " comes twice"; });
  }
  return {from.begin(), from.end()};
}

Heartbeat read(const proto::Heartbeat& from) {
  constexpr std::uint64_t kLatestUs = std::uint64_t{1} << 53U;  // 285 years: no clock shows more
  const auto time_us = [](std::uint64_t us) { return us <= kLatestUs ? static_cast<TimeUs>(us) : 0; };
  return {from.reply(), time_us(from.sent_us()), time_us(from.answered_us())};
}

Stalled read(const proto::Stalled& from, const Field& at, Checks& checks) {
  return {from.rank(), checks.text(from.tensor(), {&at, "tensor"}, kMaxLongNameBytes), from.step(),
          checks.at_most(from.age_ms(), kMostMs, {&at, "age_ms"}),
          read_enum(from.duty(), Duty::kGradients, Duty::kCollective, {&at, "duty"}, checks)};
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

}  // namespace deft::daemon::wire
