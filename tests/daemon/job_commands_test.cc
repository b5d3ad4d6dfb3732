#include "daemon/server/job_commands.h"

#include <gtest/gtest.h>

#include "core/ipc/wire.h"

namespace deft::daemon {
namespace {

class Noted final : public JobCommands {
 public:
  Result<void> change_settings(uid_t user, const std::string& job, const sched::SettingsChange& change) override {
    std::string call = std::to_string(user) + " " + job;
    for (const auto& [name, value] : change.options()) call.append(" ").append(name).append("=").append(value);
    calls.push_back(std::move(call));
    return {};
  }
  void trace(uid_t user, const std::string& job, const wire::TraceOrder& order, const TraceTold& told) override {
    calls.push_back(std::to_string(user) + " " + job + " " + order.folder + " " + std::to_string(order.steps));
    if (order.action == ipc::TraceAction::kStop) return told(fail(ErrorKind::kInvalid, "the job writes no trace"));
    told("/state/x.trace");
  }
  std::vector<std::string> calls;
};

// The answer; an error if the request breaks the protocol.
Result<std::vector<std::byte>> answer_to(const ipc::Packet& packet, uid_t user, Noted& noted) {
  std::vector<std::byte> answer;
  const auto ok = answer_command(packet, user, noted, [&](std::vector<std::byte> told) { answer = std::move(told); });
  if (!ok) return tl::unexpected(ok.error());
  return answer;
}

Result<std::vector<std::byte>> ask_trace(Noted& noted, ipc::TraceAction action, const std::string& job,
                                         const std::string& folder) {
  ipc::TraceRequest request;
  request.action = action;
  request.steps = 20;
  return answer_to({ipc::encode(request, ipc::MessageKind::kTrace, {job, folder}), {}}, 7, noted);
}

Result<std::vector<std::byte>> ask_change(Noted& noted, const std::string& settings) {
  return answer_to({ipc::encode(ipc::ChangeSettings{}, ipc::MessageKind::kChangeSettings, {"job", settings}), {}}, 8,
                   noted);
}

TEST(JobCommands, AnswersWithTheTextOrTheRefusal) {
  Noted noted;
  const auto dumped = ask_trace(noted, ipc::TraceAction::kDump, "", "");
  ASSERT_TRUE(dumped);
  EXPECT_EQ(ipc::decode<ipc::Text>(*dumped, ipc::MessageKind::kText, 1)->texts[0], "/state/x.trace");
  const auto refused = ask_trace(noted, ipc::TraceAction::kStop, "job", "");
  ASSERT_TRUE(refused);
  EXPECT_EQ(ipc::decode<ipc::ErrorMessage>(*refused, ipc::MessageKind::kError, 3)->texts[0], "the job writes no trace");
  EXPECT_TRUE(ask_trace(noted, ipc::TraceAction::kStart, "job", "/tmp/x"));
  EXPECT_TRUE(ask_change(noted, "policy=p3\ncredit_bytes=2MB\n"));
  EXPECT_EQ(noted.calls,
            (std::vector<std::string>{"7   0", "7 job  0", "7 job /tmp/x 20", "8 job credit_bytes=2097152 policy=p3"}));
}

TEST(JobCommands, BadSettingsAreRefusedAndReachNoJob) {
  Noted noted;
  const std::pair<const char*, const char*> bad[] = {
      {"credit_bytes=12 apples", "credit_bytes: '12 apples' is not a size"},
      {"partition_bytes=1", "partition_bytes: 1 is out of range"},
      {"policy=fife", "policy: 'fife' is none of"},
      {"credit=2MB", "no setting 'credit' that can change"},
      {"timeout=3s", "no setting 'timeout' that can change"},
      {"credit_bytes=", "the setting credit_bytes has no value"},
      {"credit_bytes=1MB\ncredit_bytes=2MB", "the setting credit_bytes is given twice"},
      {"", "no setting is given"},
  };
  for (const auto& [settings, words] : bad) {
    const auto answer = ask_change(noted, settings);
    ASSERT_TRUE(answer) << settings;
    const auto refused = ipc::decode<ipc::ErrorMessage>(*answer, ipc::MessageKind::kError, 3);
    ASSERT_TRUE(refused) << settings;
    EXPECT_NE(refused->texts[0].find(words), std::string::npos) << refused->texts[0];
  }
  EXPECT_TRUE(noted.calls.empty());
}

TEST(JobCommands, WhatBreaksTheProtocolReachesNoJob) {
  Noted noted;
  EXPECT_FALSE(ask_trace(noted, static_cast<ipc::TraceAction>(9), "job", ""));
  EXPECT_FALSE(ask_trace(noted, ipc::TraceAction::kStart, "job", "here"));
  EXPECT_FALSE(ask_trace(noted, ipc::TraceAction::kStart, "job", ""));
  EXPECT_FALSE(ask_trace(noted, ipc::TraceAction::kDump, "job", "/tmp"));
  EXPECT_FALSE(ask_trace(noted, ipc::TraceAction::kDump, "a\nb", ""));
  EXPECT_FALSE(ask_trace(noted, ipc::TraceAction::kStart, "job", "/" + std::string(5000, 'x')));
  EXPECT_FALSE(
      answer_to({ipc::encode(ipc::ChangeSettings{}, ipc::MessageKind::kChangeSettings, {"job"}), {}}, 8, noted));
  EXPECT_FALSE(ask_change(noted, "policy=" + std::string(5000, 'x')));
  EXPECT_TRUE(noted.calls.empty());
}

}  // namespace
}  // namespace deft::daemon
