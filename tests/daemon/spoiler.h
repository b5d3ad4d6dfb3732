// Spoils a message field by field: the fields come from the descriptors of the protocol, so that a new field is spoiled, too.
//
//   Spoiler spoiler([&](const std::string& path) { send(message); });   // once for each spoiled form; the message is as before after it
//   spoiler.spoil_all(message, "");
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "proto/control.pb.h"

namespace deft::daemon::samples {

using KindOfMessage = google::protobuf::Descriptor;  // deft has a Descriptor, too
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

template <typename Number>
std::vector<Number> numbers(Number now) {
  constexpr Number kMost = std::numeric_limits<Number>::max();
  std::vector<Number> values{0, 1, 2, 3, 7, 1 << 10, 1 << 21, kMost / 2, kMost / 2 + 1, kMost - 1, kMost};
  values.insert(values.end(), {static_cast<Number>(now + 1), static_cast<Number>(now - 1)});
  return values;
}

inline const std::vector<double> kDoubles{std::numeric_limits<double>::quiet_NaN(),
                                          std::numeric_limits<double>::infinity(),
                                          -std::numeric_limits<double>::infinity(),
                                          -1,
                                          0,
                                          1e300};
inline const std::vector<std::string> kTexts{"",
                                             "x",
                                             "\xff",
                                             "\xc0\x80",
                                             "\xed\xa0\x80",
                                             std::string("\0", 1),
                                             "gather",
                                             std::string(256, 'n'),
                                             std::string(5000, 'n'),
                                             std::string(70'000, 'n')};

// Calls `visit` with each spoiled form of `field`, which `message` holds somewhere inside `root`. `message` is as it was at the end.
class Spoiler {
 public:
  // (path of the field, without indices)
  using Visit = std::function<void(const std::string& path)>;

  explicit Spoiler(Visit visit) : visit_(std::move(visit)) {}

  void spoil_all(Message& message, const std::string& path) {
    const KindOfMessage& kind = *message.GetDescriptor();
    for (int i = 0; i < kind.field_count(); ++i) spoil(message, *kind.field(i), path);
  }

 private:
  void spoil(Message& message, const FieldDescriptor& field, const std::string& parent) {
    const Reflection& reflection = *message.GetReflection();
    const std::string path = parent + (parent.empty() ? "" : ".") + field.name();
    if (field.is_repeated()) return spoil_list(message, field, path);
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (reflection.HasField(message, &field)) spoil_all(*reflection.MutableMessage(&message, &field), path);
      return try_without(message, field, path);
    }
    spoil_value(message, field, path);
  }

  void try_without(Message& message, const FieldDescriptor& field, const std::string& path) {
    restoring(
        message, [&] { message.GetReflection()->ClearField(&message, &field); }, path);
  }

  void restoring(Message& message, const std::function<void()>& change, const std::string& path) {
    const std::unique_ptr<Message> before(message.New());
    before->CopyFrom(message);
    change();
    visit_(path);
    message.CopyFrom(*before);
  }

  void spoil_value(Message& message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& r = *message.GetReflection();
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_UINT32:
        for (const auto value : numbers(r.GetUInt32(message, &field)))
          restoring(
              message, [&] { r.SetUInt32(&message, &field, value); }, path);
        return;
      case FieldDescriptor::CPPTYPE_UINT64:
        for (const auto value : numbers(r.GetUInt64(message, &field)))
          restoring(
              message, [&] { r.SetUInt64(&message, &field, value); }, path);
        return;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        for (const double value : kDoubles)
          restoring(
              message, [&] { r.SetDouble(&message, &field, value); }, path);
        return;
      case FieldDescriptor::CPPTYPE_BOOL:
        return restoring(
            message, [&] { r.SetBool(&message, &field, !r.GetBool(message, &field)); }, path);
      case FieldDescriptor::CPPTYPE_STRING:
        for (const auto& value : kTexts)
          restoring(
              message, [&] { r.SetString(&message, &field, value); }, path);
        return;
      default: ADD_FAILURE() << path << " is of a type that the spoiler does not know";
    }
  }

  void spoil_list(Message& message, const FieldDescriptor& field, const std::string& path) {
    const Reflection& r = *message.GetReflection();
    const int size = r.FieldSize(message, &field);
    try_without(message, field, path);
    if (size > 0)
      restoring(
          message, [&] { r.RemoveLast(&message, &field); }, path);
    for (const int copies : {1, 5000})
      restoring(
          message,
          [&] {
            for (int i = 0; i < copies; ++i) add_one(message, field);
          },
          path);
    for (int i = 0; i < size; ++i) {
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)
        spoil_all(*r.MutableRepeatedMessage(&message, &field, i), path);
      else
        spoil_item(message, field, i, path);
    }
  }

  // Another one like the last, or an empty one.
  static void add_one(Message& message, const FieldDescriptor& field) {
    const Reflection& r = *message.GetReflection();
    const int size = r.FieldSize(message, &field);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        Message* const added = r.AddMessage(&message, &field);
        if (size > 0) added->CopyFrom(r.GetRepeatedMessage(message, &field, size - 1));
        return;
      }
      case FieldDescriptor::CPPTYPE_UINT32:
        return r.AddUInt32(&message, &field, size > 0 ? r.GetRepeatedUInt32(message, &field, size - 1) : 0);
      case FieldDescriptor::CPPTYPE_UINT64:
        return r.AddUInt64(&message, &field, size > 0 ? r.GetRepeatedUInt64(message, &field, size - 1) : 0);
      default: return r.AddString(&message, &field, "more");
    }
  }

  void spoil_item(Message& message, const FieldDescriptor& field, int i, const std::string& path) {
    const Reflection& r = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
      for (const auto value : numbers(r.GetRepeatedUInt32(message, &field, i)))
        restoring(
            message, [&] { r.SetRepeatedUInt32(&message, &field, i, value); }, path);
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_UINT64) {
      for (const auto value : numbers(r.GetRepeatedUInt64(message, &field, i)))
        restoring(
            message, [&] { r.SetRepeatedUInt64(&message, &field, i, value); }, path);
    } else {
      for (const auto& value : kTexts)
        restoring(
            message, [&] { r.SetRepeatedString(&message, &field, i, value); }, path);
    }
  }

  Visit visit_;
};

// True if an error begins with the way to a field that the protocol has, as "launch_order.launches[2].link: ...".
inline bool names_a_field(const Error& error, const KindOfMessage* kind) {
  std::string path = error.what.substr(0, error.what.find(':'));
  if (proto::Envelope::descriptor()->FindFieldByName(path) != nullptr) return true;  // the whole message is missing
  while (!path.empty()) {
    const std::string step = path.substr(0, path.find('.'));
    path = step.size() == path.size() ? "" : path.substr(step.size() + 1);
    const auto* const field = kind == nullptr ? nullptr : kind->FindFieldByName(step.substr(0, step.find('[')));
    if (field == nullptr) return false;
    kind = field->message_type();
  }
  return true;
}

}  // namespace deft::daemon::samples
