// What the fuzzer of traces feeds to the reader.
//
//   trace_of(input)        // the file that the fuzzer makes of its input
//   input_of(trace)        // an input that gives such a file: a seed
//
// The checksums of a trace would keep a fuzzer from its contents. So unless the first byte is odd, the input is a list of frames,
// (type, length / 16, content), which are compressed here.
#pragma once

#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/trace/trace_file.h"

namespace deft::fuzz_trace {

using Bytes = std::vector<std::byte>;

// A header that is right, so that what follows is read.
inline constexpr std::string_view kHeader =
    R"({"job":"j","incarnation":1,"node":0,"nodes":2,"host":"h","ranks":[0],"links":["gloo:a"],"options":{"policy":"fifo"}})";
inline constexpr std::size_t kUnit = 16;        // of a frame's length
inline constexpr std::size_t kMostUnits = 252;  // 63 records

inline void append(Bytes& out, const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + bytes);
}

inline void append_frame(Bytes& out, std::uint32_t type, const std::uint8_t* content, std::size_t bytes) {
  std::vector<char> stored(ZSTD_compressBound(bytes));
  const std::size_t used = ZSTD_compress(stored.data(), stored.size(), content, bytes, 1);
  if (ZSTD_isError(used) != 0) std::abort();
  const std::uint32_t head[] = {type, static_cast<std::uint32_t>(used), static_cast<std::uint32_t>(bytes)};
  append(out, head, sizeof(head));
  append(out, stored.data(), used);
}

inline Bytes trace_of(const std::uint8_t* data, std::size_t size) {
  Bytes file;
  if ((data[0] & 1U) != 0) return append(file, data + 1, size - 1), file;
  ++data, --size;
  append(file, "DEFTTRC1", 8);
  append_frame(file, 1, reinterpret_cast<const std::uint8_t*>(kHeader.data()), kHeader.size());
  while (size > 2) {
    const std::size_t length = std::min<std::size_t>(size - 2, std::size_t{data[1]} * kUnit);
    append_frame(file, data[0] % 6U, data + 2, length);
    data += 2 + length, size -= 2 + length;
  }
  return file;
}

inline void add_frame(std::string& input, char type, std::string content) {
  content.resize((content.size() + kUnit - 1) / kUnit * kUnit, ' ');
  if (content.size() / kUnit > kMostUnits) std::abort();
  input += type;
  input += static_cast<char>(content.size() / kUnit);
  input += content;
}

// The group must be small: its JSON is one frame.
inline std::string input_of(const trace::NodeTrace& trace) {
  std::string input(1, '\0');
  for (const auto& group : trace.groups) {
    nlohmann::json tensors = nlohmann::json::array(), buckets = nlohmann::json::array();
    const auto add = [](nlohmann::json& list, nlohmann::json entry, const auto& elements) {
      if (elements)  // older versions did not write them
        entry.push_back(static_cast<int>(elements->dtype)), entry.push_back(elements->coded_bytes);
      list.push_back(std::move(entry));
    };
    for (const auto& t : group.tensors) add(tensors, {t.name, t.bytes, t.forward_position}, t.elements);
    for (const auto& b : group.buckets) add(buckets, {b.bytes, b.forward_position, b.tensors}, b.elements);
    const nlohmann::json json = {
        {"group", group.group}, {"name", group.name}, {"tensors", tensors}, {"buckets", buckets}};
    add_frame(input, 2, json.dump());
  }
  constexpr std::size_t kRecordsAFrame = kMostUnits * kUnit / sizeof(trace::TraceRecord);
  for (std::size_t i = 0; i < trace.records.size(); i += kRecordsAFrame) {
    const std::size_t count = std::min(kRecordsAFrame, trace.records.size() - i);
    add_frame(input, 3, {reinterpret_cast<const char*>(&trace.records[i]), count * sizeof(trace::TraceRecord)});
  }
  add_frame(input, 4, R"({"lost":0})");
  return input;
}

}  // namespace deft::fuzz_trace
