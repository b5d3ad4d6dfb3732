#include "tools/user_passes.h"

#include <cstdlib>
#include <fstream>
#include <string_view>

#include "core/base/config.h"
#include "core/base/policy_traits.h"
#include "tools/child_command.h"
#include "tools/command.h"
#include "tools/installed.h"

namespace deft::tools {
namespace {

using nlohmann::json;

constexpr ChildWords kOfPasses{.so = "so no pass was asked",
                               .fix_missing = "passes need Python 3.11 or newer on the PATH",
                               .fix_failed = "its own output says why"};

json job_for_passes(const replay::MeasuredJob& measured) {
  json job = {{"nodes", measured.node_count},
              {"options", measured.options},
              {"buckets", json::array()},
              {"links", json::array()}};
  for (const auto& bucket : measured.profile.buckets)
    job["buckets"].push_back({{"name", bucket.name},
                              {"bytes", bucket.bytes},
                              {"forward_us", bucket.forward_us},
                              {"backward_us", bucket.backward_us}});
  for (std::size_t link = 0; link < measured.profile.links.size(); ++link) {
    const model::LinkModel model = measured.profile.link_model(link);
    job["links"].push_back(
        {{"name", model.name}, {"latency_us", model.latency_us}, {"bytes_per_us", model.bytes_per_us}});
  }
  return job;
}

Error wrong(const std::string& pass, const std::string& what) {
  return {ErrorKind::kInvalid,
          "pass " + pass + " proposes " + what,
          "a proposal may have policy, bucket_bytes, partition_bytes and credit_bytes",
          {}};
}

// Null: it is not the name of a size.
std::uint64_t optimize::Settings::*size_called(std::string_view name) {
  if (name == "bucket_bytes") return &optimize::Settings::bucket_bytes;
  if (name == "partition_bytes") return &optimize::Settings::partition_bytes;
  return name == "credit_bytes" ? &optimize::Settings::credit_bytes : nullptr;
}

// The option's own range; `bucket_bytes` 0 are the traced buckets.
bool can_be(const std::string& name, std::uint64_t bytes) {
  if (name == "bucket_bytes" && bytes == 0) return true;
  return Config::load({}, std::vector{as_variable(name) + "=" + std::to_string(bytes)}, Audience::kWorker).has_value();
}

Result<optimize::Settings> settings_of(const std::string& pass, const json& changes, optimize::Settings settings) {
  for (const auto& [name, value] : changes.items()) {
    const std::string what = name + " = " + value.dump(-1, ' ', true, json::error_handler_t::replace);
    if (name == "policy" && value.is_string()) {
      const PolicyTraits* const traits = find_policy(value.get<std::string>());
      if (traits == nullptr || !is_exact(*traits) || traits->id == PolicyId::kAuto)
        return tl::unexpected(wrong(pass, what + ", which is no policy whose settings are looked for"));
      settings.policy = value;
      continue;
    }
    const auto size = size_called(name);
    if (size == nullptr || !value.is_number_unsigned() || !can_be(name, value.get<std::uint64_t>()))
      return tl::unexpected(wrong(pass, what));
    settings.*size = value.get<std::uint64_t>();
  }
  return settings;
}

Result<std::vector<optimize::Proposal>> proposals_in(const json& answer, const optimize::Settings& best,
                                                     bool keeps_buckets) {
  if (const auto error = answer.find("error"); error != answer.end())
    return fail(ErrorKind::kInvalid, error->get<std::string>());
  std::vector<optimize::Proposal> proposals;
  for (const json& proposal : answer.at("proposals")) {
    const auto pass = proposal.at("pass").get<std::string>();
    auto settings = settings_of(pass, proposal.at("settings"), best);
    if (!settings) return tl::unexpected(settings.error());
    if (keeps_buckets && settings->bucket_bytes != best.bucket_bytes)
      return fail(ErrorKind::kInvalid, "pass " + pass + " proposes other buckets, which a running job cannot have",
                  "leave out bucket_bytes, or --running");
    proposals.push_back({pass, *std::move(settings)});
  }
  return proposals;
}

}  // namespace

Result<UserPasses> UserPasses::begin(std::vector<std::string> files, const replay::MeasuredJob& measured,
                                     bool keeps_buckets) {
  if (python_package().empty())
    return fail(ErrorKind::kUnavailable, "the Python package of Deft is not beside this program",
                "install the package of Deft as a whole");
  auto folder = TemporaryFolder::make("deft-passes", "passes");
  if (!folder) return tl::unexpected(folder.error());
  return UserPasses(std::move(files), job_for_passes(measured), keeps_buckets, *std::move(folder));
}

Result<std::vector<optimize::Proposal>> UserPasses::ask(const optimize::Settings& best, double step_us,
                                                        double seconds) const {
  const std::filesystem::path question = folder_.path() / "question", answer = folder_.path() / "answer";
  const json told = {{"job", job_},
                     {"best",
                      {{"policy", best.policy},
                       {"bucket_bytes", best.bucket_bytes},
                       {"partition_bytes", best.partition_bytes},
                       {"credit_bytes", best.credit_bytes},
                       {"step_us", step_us}}},
                     {"seconds", seconds}};
  if (auto ok = write_text(question.string(), json_text(told)); !ok) return tl::unexpected(ok.error());
  std::vector<std::string> command = {"python3", "-m", "deft.ask_passes", question.string(), answer.string()};
  command.insert(command.end(), files_.begin(), files_.end());
  std::map<std::string, std::string> variables;
  if (const std::string path = python_path().string(); !path.empty()) {
    const char* const before = std::getenv("PYTHONPATH");
    variables["PYTHONPATH"] = before == nullptr || *before == '\0' ? path : path + ":" + before;
  }
  if (auto ok = run_command(command, variables, kOfPasses); !ok) return tl::unexpected(ok.error());
  std::ifstream file(answer);
  try {
    return proposals_in(json::parse(file), best, keeps_buckets_);
  } catch (const json::exception& error) {
    return fail(ErrorKind::kInternal, std::string("the answer of the passes cannot be read: ") + error.what());
  }
}

}  // namespace deft::tools
