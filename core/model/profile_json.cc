// The JSON form of a profile. A streaming reader, so that an error in the middle of a number still knows its field, a
// repeated field is seen, and nesting costs no stack.
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/base/numbers.h"
#include "core/base/text_file.h"
#include "core/model/profile.h"

namespace deft::model {
namespace {

using Json = nlohmann::json;

// Where the reader is. Entries are the objects in `buckets` and `links`.
enum class Level : std::uint8_t { kOutside, kRoot, kList, kEntry, kDone };

struct Field {
  std::string_view name;
  std::string_view camel;  // the spelling of protobuf's JSON
  bool required;
};

constexpr std::array<Field, 5> kRootFields{{{"model", "model", false},
                                            {"source", "source", false},
                                            {"buckets", "buckets", true},
                                            {"links", "links", true},
                                            {"codecs", "codecs", false}}};
constexpr std::array<Field, 7> kBucketFields{{{"name", "name", true},
                                              {"bytes", "bytes", true},
                                              {"forward_us", "forwardUs", true},
                                              {"backward_us", "backwardUs", true},
                                              {"comm_us", "commUs", false},
                                              {"coded_bytes", "codedBytes", false},
                                              {"element_bytes", "elementBytes", false}}};
constexpr std::array<Field, 4> kLinkFields{{{"name", "name", true},
                                            {"latency_us", "latencyUs", true},
                                            {"relative_time", "relativeTime", false},
                                            {"bytes_per_us", "bytesPerUs", false}}};
constexpr std::array<Field, 6> kCodecFields{{{"name", "name", true},
                                             {"wire_share", "wireShare", true},
                                             {"encode_us_per_byte", "encodeUsPerByte", false},
                                             {"decode_us_per_byte", "decodeUsPerByte", false},
                                             {"error", "error", false},
                                             {"link_shares", "linkShares", false}}};

// The list that the reader is in.
enum class List : std::uint8_t { kBuckets, kLinks, kCodecs };

std::size_t entries(const Profile& profile, List list) {
  if (list == List::kBuckets) return profile.buckets.size();
  return list == List::kLinks ? profile.links.size() : profile.codecs.size();
}

std::string& last_name(Profile& profile, List list) {
  if (list == List::kBuckets) return profile.buckets.back().name;
  return list == List::kLinks ? profile.links.back().name : profile.codecs.back().name;
}

bool set_count(ProfileBucket& bucket, std::string_view field, std::uint64_t value) {
  if (field == "bytes")
    bucket.bytes = value;
  else if (field == "coded_bytes")
    bucket.coded_bytes = value;
  else
    bucket.element_bytes = value;
  return true;
}

class Reader final : public nlohmann::json_sax<Json> {
 public:
  Profile profile;
  std::string error;

  bool null() override { return refuse("null is no value"); }
  bool boolean(bool) override { return refuse("true or false is no value here"); }
  bool binary(binary_t&) override { return refuse("binary is no value here"); }
  bool number_integer(std::int64_t value) override {
    if (value < 0 && count()) return refuse(std::to_string(value) + " is negative");
    return number(static_cast<double>(value));
  }
  bool number_unsigned(std::uint64_t value) override {
    return count() ? set_count(profile.buckets.back(), field_name(), value) : number(static_cast<double>(value));
  }
  bool number_float(double value, const string_t& text) override {
    if (count()) return refuse(text + " is no whole number of bytes");
    return number(value);
  }
  bool string(string_t& value) override;
  bool start_object(std::size_t) override;
  bool key(string_t& name) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool parse_error(std::size_t position, const std::string& token, const Json::exception& problem) override;

 private:
  [[nodiscard]] std::span<const Field> fields() const {
    if (level_ == Level::kRoot || level_ == Level::kList) return kRootFields;
    if (list_ == List::kBuckets) return kBucketFields;
    if (list_ == List::kCodecs) return kCodecFields;
    return kLinkFields;
  }
  [[nodiscard]] std::string_view field_name() const { return field_ < 0 ? std::string_view{} : fields()[field_].name; }
  [[nodiscard]] std::string place() const;
  // The field holds a number of bytes.
  [[nodiscard]] bool count() const {
    return level_ == Level::kEntry &&
           (field_name() == "bytes" || field_name() == "coded_bytes" || field_name() == "element_bytes");
  }
  bool refuse(const std::string& what) {
    const std::string where = place();
    if (error.empty()) error = where.empty() ? what : where + ": " + what;
    return false;
  }
  bool number(double value);
  bool leave(unsigned seen);

  Level level_ = Level::kOutside;
  List list_ = List::kBuckets;
  int field_ = -1;  // of fields(), or none yet
  unsigned root_seen_ = 0;
  unsigned entry_seen_ = 0;
  bool in_shares_ = false;  // in the list of a codec's link_shares
};

std::string Reader::place() const {
  if (level_ == Level::kOutside || level_ == Level::kDone) return {};
  const std::string field(field_name());
  if (level_ == Level::kRoot) return field;
  std::string path = list_ == List::kBuckets ? "buckets[" : list_ == List::kLinks ? "links[" : "codecs[";
  const bool inside = level_ == Level::kEntry;
  path += std::to_string(inside ? entries(profile, list_) - 1 : entries(profile, list_)) + "]";
  return inside && !field.empty() ? path + "." + field : path;
}

bool Reader::number(double value) {
  if (level_ != Level::kEntry) return refuse("a number is no value here");
  const std::string_view name = field_name();
  if (in_shares_) {
    auto& shares = profile.codecs.back().link_shares;
    shares.push_back(value);
    return shares.size() <= kMaxProfileLinks || refuse("too many entries");
  }
  if (list_ == List::kBuckets) {
    ProfileBucket& bucket = profile.buckets.back();
    if (name == "forward_us") return bucket.forward_us = value, true;
    if (name == "backward_us") return bucket.backward_us = value, true;
    if (name == "comm_us") return bucket.comm_us = value, true;
  } else if (list_ == List::kCodecs) {
    CodecCost& codec = profile.codecs.back();
    if (name == "wire_share") return codec.wire_share = value, true;
    if (name == "encode_us_per_byte") return codec.encode_us_per_byte = value, true;
    if (name == "decode_us_per_byte") return codec.decode_us_per_byte = value, true;
    if (name == "error") return codec.error = value, true;
    if (name == "link_shares") return refuse("a number where a list belongs");
  } else {
    ProfileLink& link = profile.links.back();
    if (name == "latency_us") return link.latency_us = value, true;
    if (name == "relative_time") return link.relative_time = value, true;
    if (name == "bytes_per_us") return link.bytes_per_us = value, true;
  }
  if (count()) return refuse("no whole number of bytes");
  return refuse("a number where a text belongs");
}

bool Reader::string(string_t& value) {
  if (level_ == Level::kRoot && field_name() == "model") return profile.model = value, true;
  if (level_ == Level::kRoot && field_name() == "source") return profile.source = value, true;
  if (level_ != Level::kEntry) return refuse("a text is no value here");
  if (field_name() == "name") return last_name(profile, list_) = value, true;
  if (!count()) return refuse("a text where a number belongs");
  const auto bytes = parse_whole<std::uint64_t>(value);
  if (!bytes) return refuse("'" + value + "' is no whole number of bytes");
  return set_count(profile.buckets.back(), field_name(), *bytes);
}

bool Reader::start_object(std::size_t) {
  if (level_ == Level::kOutside) return level_ = Level::kRoot, true;
  if (level_ != Level::kList) return refuse("an object is no value here");
  const std::size_t most = list_ == List::kBuckets ? kMaxProfileBuckets
                           : list_ == List::kLinks ? kMaxProfileLinks
                                                   : kMaxCodecs;
  if (entries(profile, list_) >= most) return refuse("too many entries");
  if (list_ == List::kBuckets)
    profile.buckets.emplace_back();
  else if (list_ == List::kLinks)
    profile.links.emplace_back();
  else
    profile.codecs.emplace_back().name.clear();
  level_ = Level::kEntry;
  entry_seen_ = 0;
  field_ = -1;
  return true;
}

bool Reader::key(string_t& name) {
  field_ = -1;
  const auto known = fields();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (name != known[i].name && name != known[i].camel) continue;
    field_ = static_cast<int>(i);
    unsigned& seen = level_ == Level::kRoot ? root_seen_ : entry_seen_;
    if (seen >> i & 1U) return refuse("is there twice");
    seen |= 1U << i;
    return true;
  }
  const std::string where = place();
  if (error.empty()) error = (where.empty() ? "" : where + ".") + name.substr(0, 80) + ": unknown field";
  return false;
}

// At the end of an object: looks for missing fields.
bool Reader::leave(unsigned seen) {
  const auto known = fields();
  for (std::size_t i = 0; i < known.size(); ++i) {
    if (!known[i].required || (seen >> i & 1U)) continue;
    field_ = static_cast<int>(i);
    return refuse("missing");
  }
  return true;
}

bool Reader::end_object() {
  if (!leave(level_ == Level::kRoot ? root_seen_ : entry_seen_)) return false;
  level_ = level_ == Level::kRoot ? Level::kDone : Level::kList;
  field_ = -1;
  return true;
}

bool Reader::start_array(std::size_t) {
  const std::string_view name = field_name();
  if (level_ == Level::kEntry && name == "link_shares" && !in_shares_) return in_shares_ = true;
  if (level_ != Level::kRoot || (name != "buckets" && name != "links" && name != "codecs"))
    return refuse("a list is no value here");
  list_ = name == "buckets" ? List::kBuckets : name == "links" ? List::kLinks : List::kCodecs;
  if (list_ == List::kCodecs) profile.codecs.clear();
  level_ = Level::kList;
  return true;
}

bool Reader::end_array() {
  if (in_shares_) {
    in_shares_ = false;
    return true;
  }
  level_ = Level::kRoot;
  field_ = -1;
  return true;
}

bool Reader::parse_error(std::size_t position, const std::string& token, const Json::exception& problem) {
  const bool range = problem.id == 406;  // a number that no double holds
  return refuse(range ? token.substr(0, 40) + " is no finite number"
                      : "not valid JSON at byte " + std::to_string(position));
}

constexpr char kWhatAProfileIs[] = "examples/profiles has profiles, and deft replay DIR --profile FILE writes one";

}  // namespace

Result<Profile> parse_profile(std::string_view json) {
  if (json.size() > kMaxProfileText) return fail(ErrorKind::kInvalid, "the profile is larger than 64 MiB");
  Reader reader;
  if (!Json::sax_parse(json.begin(), json.end(), &reader))
    return fail(ErrorKind::kInvalid, reader.error.empty() ? "not valid JSON" : reader.error, kWhatAProfileIs);
  if (auto ok = check_profile(reader.profile); !ok) return tl::unexpected(ok.error());
  return std::move(reader.profile);
}

Result<Profile> read_profile(const std::string& path) {
  const auto text = read_text_file("the profile", path, kMaxProfileText, "check the path and its permissions");
  if (!text) return tl::unexpected(text.error());
  auto profile = parse_profile(*text);
  if (!profile) return tl::unexpected(profile.error().in(path));
  return profile;
}

std::string to_json(const Profile& profile) {
  nlohmann::ordered_json out;
  out["model"] = profile.model;
  out["source"] = profile.source;
  out["buckets"] = nlohmann::ordered_json::array();
  for (const auto& bucket : profile.buckets) {
    nlohmann::ordered_json entry{{"name", bucket.name}, {"bytes", bucket.bytes}};
    entry["forward_us"] = bucket.forward_us;
    entry["backward_us"] = bucket.backward_us;
    if (bucket.comm_us) entry["comm_us"] = *bucket.comm_us;
    if (bucket.coded_bytes) entry["coded_bytes"] = *bucket.coded_bytes;
    if (bucket.element_bytes != 4) entry["element_bytes"] = bucket.element_bytes;
    out["buckets"].push_back(std::move(entry));
  }
  out["links"] = nlohmann::ordered_json::array();
  for (const auto& link : profile.links) {
    nlohmann::ordered_json entry{{"name", link.name}, {"latency_us", link.latency_us}};
    if (link.relative_time) entry["relative_time"] = *link.relative_time;
    if (link.bytes_per_us) entry["bytes_per_us"] = *link.bytes_per_us;
    out["links"].push_back(std::move(entry));
  }
  if (profile.codecs != exact_only()) {
    out["codecs"] = nlohmann::ordered_json::array();
    for (const auto& codec : profile.codecs) {
      auto& entry = out["codecs"].emplace_back(nlohmann::ordered_json{{"name", codec.name},
                                                                      {"wire_share", codec.wire_share},
                                                                      {"encode_us_per_byte", codec.encode_us_per_byte},
                                                                      {"decode_us_per_byte", codec.decode_us_per_byte},
                                                                      {"error", codec.error}});
      if (!codec.link_shares.empty()) entry["link_shares"] = codec.link_shares;
    }
  }
  return out.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace deft::model
