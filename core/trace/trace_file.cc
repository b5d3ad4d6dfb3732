#include "core/trace/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/base/text.h"
#include "core/model/codec_cost.h"
#include "core/model/daemon_thread.h"
#include "core/model/events.h"
#include "core/model/policy_reason.h"
#include "core/model/profile.h"
#include "core/model/segment_part.h"
#include "core/trace/link_cost_trace.h"
#include "core/trace/segment_trace.h"

namespace deft::trace {
namespace {

using nlohmann::json;

constexpr std::string_view kMagic = "DEFTTRC1";
constexpr int kLevel = 1;                     // of zstd: a trace is written while a job runs
constexpr std::size_t kMaxFrame = 16U << 20;  // of one frame, decompressed
constexpr std::size_t kMostProblems = 8;
constexpr std::size_t kMostGroups = 1024, kMostTensors = 200'000, kMostNodes = 1U << 20U, kMostLinks = 256,
                      kMostOptions = 256;
constexpr std::size_t kLongestName = 4096;
// Limits for all groups of a file together. JSON compresses a hundred times, so a small file could take all memory.
constexpr std::size_t kMostGroupBytes = 64U << 20, kMostText = 128U << 20;
constexpr double kLeastBytesPerUs = 1e-6, kLongestLatencyUs = 1e8;  // of a link
constexpr std::int64_t kLongestUs = std::int64_t{1} << 53U;

enum Type : std::uint32_t { kHeader = 1, kGroup = 2, kRecords = 3, kEnd = 4 };

struct FrameHead {
  std::uint32_t type = 0;
  std::uint32_t stored_bytes = 0;
  std::uint32_t bytes = 0;
};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

json to_json(const TraceHeader& h) {
  return {{"job", h.job},         {"incarnation", h.incarnation},
          {"node", h.node},       {"nodes", h.nodes},
          {"host", h.host},       {"begun_s", h.begun_s},
          {"ranks", h.ranks},     {"links", h.links},
          {"options", h.options}, {"codecs", h.codecs}};
}

json to_json(const TraceGroup& g) {
  json tensors = json::array(), buckets = json::array();
  const auto add = [](json& list, json entry, const std::optional<TraceGroup::Elements>& elements) {
    if (elements) entry.push_back(static_cast<std::uint32_t>(elements->dtype)), entry.push_back(elements->coded_bytes);
    list.push_back(std::move(entry));
  };
  for (const auto& t : g.tensors) add(tensors, {t.name, t.bytes, t.forward_position}, t.elements);
  for (const auto& b : g.buckets) add(buckets, {b.bytes, b.forward_position, b.tensors}, b.elements);
  return {{"group", g.group}, {"name", g.name}, {"tensors", std::move(tensors)}, {"buckets", std::move(buckets)}};
}

// The getters below throw json's exceptions and std::range_error; parse() makes a problem of both.
[[noreturn]] void refuse(const std::string& what) { throw std::range_error(what); }

std::string name_in(const json& value, std::size_t most = kLongestName) {
  auto text = value.get<std::string>();
  if (!check_text(text, most, "a name")) refuse("a name that is no text");
  return text;
}

template <typename Number>
Number number_in(const json& value, std::uint64_t most = std::numeric_limits<Number>::max()) {
  if (!value.is_number_unsigned()) refuse("a number that is none");
  const auto number = value.get<std::uint64_t>();
  if (number > most) refuse("a number that is too large");
  return static_cast<Number>(number);
}

const json& list_in(const json& value, std::size_t most) {
  if (!value.is_array() || value.size() > most) refuse("a list that is none, or is too long");
  return value;
}

TraceHeader header_in(const json& from) {
  TraceHeader header;
  header.job = name_in(from.at("job"));
  header.incarnation = number_in<std::uint64_t>(from.at("incarnation"));
  header.nodes = number_in<std::uint32_t>(from.at("nodes"), kMostNodes);
  header.node = number_in<std::uint32_t>(from.at("node"));
  if (header.node >= header.nodes) refuse("a node beyond the last one");
  header.host = name_in(from.at("host"));
  for (const auto& rank : list_in(from.at("ranks"), kMostNodes)) header.ranks.push_back(number_in<std::uint32_t>(rank));
  for (const auto& link : list_in(from.at("links"), kMostLinks)) header.links.push_back(name_in(link));
  const json& options = from.at("options");
  if (!options.is_object() || options.size() > kMostOptions) refuse("options that are none, or too many");
  for (const auto& [name, value] : options.items()) header.options[name_in(name)] = name_in(value);
  if (const auto begun_s = from.find("begun_s"); begun_s != from.end())
    header.begun_s = number_in<std::uint64_t>(*begun_s);
  if (const auto codecs = from.find("codecs"); codecs != from.end())
    for (const auto& codec : list_in(*codecs, model::kMaxCodecs)) header.codecs.push_back(name_in(codec));
  return header;
}

// They stand behind the three values that each tensor and bucket has.
std::optional<TraceGroup::Elements> elements_in(const json& entry, std::uint64_t bytes) {
  if (entry.size() <= 3) return std::nullopt;
  TraceGroup::Elements elements{static_cast<model::DType>(number_in<std::uint8_t>(entry.at(3))),
                                number_in<std::uint64_t>(entry.at(4), bytes)};
  const std::size_t element = model::dtype_bytes(elements.dtype);
  if (element == 0 || bytes % element != 0) refuse("elements of an unknown type, or no whole number of them");
  if (elements.coded_bytes > 0 && !model::is_codable(elements.dtype)) refuse("elements that no codec can encode");
  return elements;
}

TraceGroup group_in(const json& from) {
  TraceGroup group;
  group.group = number_in<std::uint32_t>(from.at("group"));
  group.name = name_in(from.at("name"));
  for (const auto& t : list_in(from.at("tensors"), kMostTensors)) {
    group.tensors.push_back({name_in(t.at(0)), number_in<std::uint64_t>(t.at(1)), number_in<std::uint32_t>(t.at(2))});
    group.tensors.back().elements = elements_in(t, group.tensors.back().bytes);
  }
  for (const auto& b : list_in(from.at("buckets"), kMostTensors)) {
    TraceGroup::Bucket bucket{number_in<std::uint64_t>(b.at(0)), number_in<std::uint32_t>(b.at(1))};
    for (const auto& tensor : list_in(b.at(2), kMostTensors)) {
      bucket.tensors.push_back(number_in<std::uint32_t>(tensor));
      if (bucket.tensors.back() >= group.tensors.size()) refuse("a bucket of tensors that do not exist");
    }
    bucket.elements = elements_in(b, bucket.bytes);
    group.buckets.push_back(std::move(bucket));
  }
  // Tensors lie one behind the other, and so do buckets: a boundary of either makes one pair more.
  std::size_t pairs = 0;
  for (const auto& bucket : group.buckets) pairs += bucket.tensors.size();
  if (pairs > 2 * (group.tensors.size() + group.buckets.size())) refuse("buckets that overlap");
  return group;
}

std::size_t bytes_in_memory(const TraceGroup& group) {
  std::size_t bytes = sizeof(group) + group.name.size();
  for (const auto& tensor : group.tensors) bytes += sizeof(tensor) + tensor.name.size();
  for (const auto& bucket : group.buckets) bytes += sizeof(bucket) + bucket.tensors.size() * sizeof(std::uint32_t);
  return bytes;
}

// Enumerations have values that are known. Payloads without any are all plausible.
bool is_plausible(const StageTrace& stage) {
  return stage.stage == static_cast<std::uint32_t>(model::Stage::kForward) ||
         stage.stage == static_cast<std::uint32_t>(model::Stage::kBackward);
}

bool is_plausible(const OrderTrace& order) {
  const bool is_codec = order.codec < model::kMaxCodecs || order.codec == model::kWithResiduals;
  return order.half <= static_cast<std::uint8_t>(model::AllReduceHalf::kAllGather) && is_codec;
}

bool is_plausible(const TransferTrace& transfer) {
  return transfer.stage > 0 && transfer.stage <= static_cast<std::uint16_t>(kLastTransferStage);
}

bool is_plausible(const MemoryTrace& memory) {
  return memory.part > 0 && memory.part <= static_cast<std::uint16_t>(kLastMemoryPart);
}

bool is_plausible(const PolicyTrace& policy) {
  const auto id = static_cast<PolicyId>(policy.policy);
  const bool is_known = std::ranges::find(kPolicyTraits, id, &PolicyTraits::id) != kPolicyTraits.end();
  return is_known && policy.reason > 0 && policy.reason <= static_cast<std::uint8_t>(model::kLastPolicyReason);
}

bool is_plausible(const CpuTrace& cpu) {
  return cpu.thread > 0 && cpu.thread <= static_cast<std::uint16_t>(model::kLastDaemonThread);
}

bool is_plausible(const SegmentTrace& segment) {
  const bool is_part = segment.part > 0 && segment.part <= static_cast<std::uint8_t>(model::kLastSegmentPart);
  return is_part && segment.is_sent <= 1 && segment.is_server <= 1;
}

bool is_plausible(const LinkCostTrace& cost) {
  return cost.latency_us >= 0 && cost.latency_us <= kLongestLatencyUs && cost.bytes_per_us >= kLeastBytesPerUs &&
         cost.bytes_per_us <= model::kMaxBytesPerUs;
}

bool is_plausible(const ClockTrace& clock) { return clock.leader_us >= 0 && clock.leader_us <= kLongestUs; }

bool is_plausible(const TraceRecord& record) {
  if (record.kind() == TraceKind::kNone || record.kind() > kLastTraceKind) return false;
  if (record.begin_us() < 0 || record.end_us() < record.begin_us() || record.end_us() > kLongestUs) return false;
  switch (record.kind()) {
    case TraceKind::kStage: return is_plausible(record.as<StageTrace>());
    case TraceKind::kOrder: return is_plausible(record.as<OrderTrace>());
    case TraceKind::kTransfer: return is_plausible(record.as<TransferTrace>());
    case TraceKind::kMemory: return is_plausible(record.as<MemoryTrace>());
    case TraceKind::kPolicy: return is_plausible(record.as<PolicyTrace>());
    case TraceKind::kCpu: return is_plausible(record.as<CpuTrace>());
    case TraceKind::kSegment: return is_plausible(record.as<SegmentTrace>());
    case TraceKind::kClock: return is_plausible(record.as<ClockTrace>());
    case TraceKind::kLinkCost: return is_plausible(record.as<LinkCostTrace>());
    default: return true;
  }
}

class Parser {
 public:
  Parser(std::span<const std::byte> content, std::size_t most) : rest_(content), most_(most) {}

  Result<NodeTrace> parse();

 private:
  void problem(const std::string& text) {
    if (trace_.problems.size() < kMostProblems) trace_.problems.push_back(text);
  }
  // Nothing: the file ends here, well or not.
  std::optional<FrameHead> next(std::vector<std::byte>& content);
  void take(std::uint32_t type, std::span<const std::byte> content);
  void take_group(TraceGroup group);
  void take_records(std::span<const std::byte> content);

  std::span<const std::byte> rest_;
  const std::size_t most_;  // records
  NodeTrace trace_;
  std::size_t group_bytes_ = 0, text_bytes_ = 0;  // so far
  bool has_header_ = false;
  bool is_full_ = false;
};

std::optional<FrameHead> Parser::next(std::vector<std::byte>& content) {
  if (rest_.empty()) return std::nullopt;
  FrameHead head;
  if (rest_.size() < sizeof(head)) return problem("the file ends within the head of a frame"), std::nullopt;
  std::memcpy(&head, rest_.data(), sizeof(head));
  rest_ = rest_.subspan(sizeof(head));
  if (head.bytes > kMaxFrame) return problem("a frame is too large"), std::nullopt;
  if (head.stored_bytes > rest_.size()) return problem("the file ends within a frame"), std::nullopt;
  const auto stored = rest_.first(head.stored_bytes);
  rest_ = rest_.subspan(head.stored_bytes);
  content.resize(head.bytes);
  const std::size_t got = ZSTD_decompress(content.data(), content.size(), stored.data(), stored.size());
  if (ZSTD_isError(got) != 0 || got != content.size()) return problem("a frame is damaged"), std::nullopt;
  return head;
}

void Parser::take_records(std::span<const std::byte> content) {
  if (content.size() % sizeof(TraceRecord) != 0) return problem("a frame ends within a record");
  const std::size_t found = content.size() / sizeof(TraceRecord), room = most_ - trace_.records.size();
  const std::size_t count = std::min(found, room);
  if (found > room && !std::exchange(is_full_, true))
    problem("there are more than " + std::to_string(most_) +
            " records, and the rest is left out: trace fewer steps (DEFT_TRACE_STEPS)");
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    TraceRecord record;
    std::memcpy(static_cast<void*>(&record), content.data() + i * sizeof(record), sizeof(record));
    if (is_plausible(record))
      trace_.records.push_back(record);
    else
      ++wrong;
  }
  if (wrong > 0) problem(std::to_string(wrong) + " records are impossible, or of a newer version");
}

void Parser::take_group(TraceGroup group) {
  if (std::ranges::find(trace_.groups, group.group, &TraceGroup::group) != trace_.groups.end())
    refuse("a group that was there before");
  group_bytes_ += bytes_in_memory(group);
  if (trace_.groups.size() == kMostGroups || group_bytes_ > kMostGroupBytes) refuse("too many groups");
  trace_.groups.push_back(std::move(group));
}

void Parser::take(std::uint32_t type, std::span<const std::byte> content) {
  if (type == kRecords) return take_records(content);
  text_bytes_ += content.size();
  if (text_bytes_ > kMostText) return rest_ = {}, problem("the file ends here: its text is too long");
  const auto* const text = reinterpret_cast<const char*>(content.data());
  try {
    const json value = json::parse(text, text + content.size());
    if (type == kHeader) {
      trace_.header = header_in(value), has_header_ = true;
    } else if (type == kGroup) {
      take_group(group_in(value));
    } else if (type == kEnd) {
      trace_.lost = number_in<std::uint64_t>(value.at("lost")), trace_.complete = true;
    } else {
      problem("a frame of an unknown kind");
    }
  } catch (const std::exception& error) {
    problem("a frame has wrong content: " + readable(error.what(), 120));
  }
}

Result<NodeTrace> Parser::parse() {
  if (rest_.size() < kMagic.size() || std::memcmp(rest_.data(), kMagic.data(), kMagic.size()) != 0)
    return fail(ErrorKind::kInvalid, "this is no trace of Deft, or of another version",
                "give a file that DEFT_TRACE or `deft trace dump` of this version has written");
  rest_ = rest_.subspan(kMagic.size());
  std::vector<std::byte> content;
  while (const auto head = next(content)) take(head->type, content);
  if (!has_header_) return fail(ErrorKind::kInvalid, "the trace has no header");
  if (!trace_.complete) problem("the trace was not finished: its node was killed, or still writes");
  std::ranges::stable_sort(trace_.records, {}, &TraceRecord::begin_us);
  return std::move(trace_);
}

tl::unexpected<Error> unreadable(const std::string& path) {
  return fail(ErrorKind::kInvalid, "cannot read " + path + ": " + std::strerror(errno));
}

// A file to read, as long as it is now: its node may still write.
struct OpenFile {
  struct Closed {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Closed> file;
  std::size_t bytes = 0;

  static Result<OpenFile> open(const std::string& path) {
    Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // a pipe would wait for a writer
    struct ::stat status {};
    if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0) return unreadable(path);
    if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) > 2 * kMaxTraceBytes)
      return fail(ErrorKind::kInvalid, path + " is no trace: it is no file, or too large");
    OpenFile open{std::unique_ptr<std::FILE, Closed>(::fdopen(descriptor.get(), "rb")),
                  static_cast<std::size_t>(status.st_size)};
    if (!open.file) return unreadable(path);
    [[maybe_unused]] const int owned = descriptor.release();  // by the file
    return open;
  }
  [[nodiscard]] bool read(std::size_t at, std::span<std::byte> out) const {
    return ::fseeko(file.get(), static_cast<::off_t>(at), SEEK_SET) == 0 &&
           std::fread(out.data(), 1, out.size(), file.get()) == out.size();
  }
};

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(const TraceFolder& folder, const std::string& name,
                                                         const TraceHeader& header, std::uint64_t most_bytes) {
  const std::string path = folder.path() + "/" + name;
  const auto refuse = [&] {
    return fail(ErrorKind::kInvalid, "cannot write " + path + ": " + std::strerror(errno),
                "give a folder in which you may write");
  };
  auto descriptor = folder.create(name);
  if (!descriptor) return tl::unexpected(descriptor.error());
  std::FILE* const file = ::fdopen(descriptor->get(), "wb");
  if (file == nullptr) return refuse();
  [[maybe_unused]] const int owned = descriptor->release();  // by the file
  std::unique_ptr<TraceWriter> writer(new TraceWriter(path, file, most_bytes));
  if (std::fwrite(kMagic.data(), 1, kMagic.size(), file) != kMagic.size()) return refuse();
  if (auto ok = writer->text_frame(kHeader, to_json(header).dump()); !ok) return tl::unexpected(ok.error());
  return writer;
}

Result<void> TraceWriter::frame(std::uint32_t type, std::span<const std::byte> content) {
  if (!file_) return fail(ErrorKind::kInternal, "the trace " + path_ + " is finished");
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> zstd(ZSTD_createCCtx(), &ZSTD_freeCCtx);
  if (!zstd) return fail(ErrorKind::kExhausted, "there is no memory to compress a trace");
  ZSTD_CCtx_setParameter(zstd.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(zstd.get(), ZSTD_c_checksumFlag, 1);
  std::vector<std::byte> stored(ZSTD_compressBound(content.size()));
  const std::size_t bytes = ZSTD_compress2(zstd.get(), stored.data(), stored.size(), content.data(), content.size());
  if (ZSTD_isError(bytes) != 0) return fail(ErrorKind::kInternal, std::string("zstd: ") + ZSTD_getErrorName(bytes));
  const FrameHead head{type, static_cast<std::uint32_t>(bytes), static_cast<std::uint32_t>(content.size())};
  const bool ok = std::fwrite(&head, sizeof(head), 1, file_.get()) == 1 &&
                  std::fwrite(stored.data(), 1, bytes, file_.get()) == bytes && std::fflush(file_.get()) == 0;
  written_ += sizeof(head) + bytes;
  if (ok) return {};
  const std::string reason = std::strerror(errno);
  file_.reset();
  return fail(ErrorKind::kExhausted, "cannot write " + path_ + ": " + reason, "free some space on that disk");
}

Result<void> TraceWriter::text_frame(std::uint32_t type, const std::string& text) {
  return frame(type, bytes_of(text));
}

Result<void> TraceWriter::group(const TraceGroup& group) { return text_frame(kGroup, to_json(group).dump()); }

Result<void> TraceWriter::records(std::span<const TraceRecord> records) {
  while (!records.empty()) {
    if (written_ >= most_bytes_) {
      left_out_ += records.size();
      return {};
    }
    const auto some = records.first(std::min(records.size(), kMaxFrame / sizeof(TraceRecord)));
    if (auto ok = frame(kRecords, std::as_bytes(some)); !ok) return ok;
    records = records.subspan(some.size());
  }
  return {};
}

Result<void> TraceWriter::finish(std::uint64_t lost) {
  if (auto ok = text_frame(kEnd, json{{"lost", lost + left_out_}}.dump()); !ok) return ok;
  file_.reset();
  return {};
}

Result<NodeTrace> parse_trace(std::span<const std::byte> content, std::size_t most) {
  return Parser(content, most).parse();
}

Result<NodeTrace> read_trace(const std::string& path, std::size_t most) {
  const auto file = OpenFile::open(path);
  if (!file) return tl::unexpected(file.error());
  std::vector<std::byte> content(file->bytes);
  if (!file->read(0, content)) return unreadable(path);
  auto trace = parse_trace(content, most);
  if (!trace) return tl::unexpected(trace.error().in(path));
  return trace;
}

// Reads the header's frame, and passes over the others.
Result<TraceGlance> glance_at_trace(const std::string& path) {
  const auto open = OpenFile::open(path);
  if (!open) return tl::unexpected(open.error());
  TraceGlance glance;
  std::size_t at = kMagic.size();
  for (FrameHead head; at + sizeof(head) <= open->bytes; at += sizeof(head) + head.stored_bytes) {
    if (!open->read(at, std::as_writable_bytes(std::span(&head, 1)))) return unreadable(path);
    const std::size_t left = open->bytes - at - sizeof(head);
    glance.complete = head.type == kEnd && head.stored_bytes <= left;
    if (at > kMagic.size()) continue;
    std::vector<std::byte> begin(at + sizeof(head) + std::min<std::size_t>(head.stored_bytes, left));
    if (!open->read(0, begin)) return unreadable(path);
    auto trace = parse_trace(begin);
    if (!trace) return tl::unexpected(trace.error().in(path));
    glance.header = std::move(trace->header);
  }
  if (at > kMagic.size()) return glance;
  return fail(ErrorKind::kInvalid, path + " is no trace: it has no header");
}

Result<std::string> unfinished_trace(const std::string& path) {
  namespace fs = std::filesystem;
  const auto own = glance_at_trace(path);
  if (!own) return tl::unexpected(own.error());
  if (!own->complete) return path;
  std::error_code hidden;
  for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path(), hidden)) {
    if (entry.path().extension() != ".trace") continue;
    const auto other = glance_at_trace(entry.path().string());
    if (other && !other->complete && other->header.job == own->header.job &&
        other->header.incarnation == own->header.incarnation)
      return entry.path().string();
  }
  return std::string();
}

}  // namespace deft::trace
