#include "tools/user_passes.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

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

Result<std::vector<optimize::Proposal>> proposals_in(const json& answer, const optimize::Settings& best,
                                                     const PassSettings& words) {
  if (const auto error = answer.find("error"); error != answer.end())
    return fail(ErrorKind::kInvalid, error->get<std::string>());
  std::vector<optimize::Proposal> proposals;
  for (const json& proposal : answer.at("proposals")) {
    const auto pass = proposal.at("pass").get<std::string>();
    auto settings = words.proposed(pass, proposal.at("settings"), best);
    if (!settings) return tl::unexpected(settings.error());
    proposals.push_back({pass, *std::move(settings)});
  }
  return proposals;
}

}  // namespace

Result<UserPasses> UserPasses::begin(std::vector<std::string> files, const replay::MeasuredJob& measured,
                                     bool is_running) {
  if (python_package().empty())
    return fail(ErrorKind::kUnavailable, "the Python package of Deft is not beside this program",
                "install the package of Deft as a whole");
  auto folder = TemporaryFolder::make("deft-passes", "passes");
  if (!folder) return tl::unexpected(folder.error());
  return UserPasses(std::move(files), job_for_passes(measured), PassSettings(measured, is_running), *std::move(folder));
}

Result<std::vector<optimize::Proposal>> UserPasses::ask(const optimize::Settings& best, double step_us,
                                                        double seconds) const {
  const std::filesystem::path question = folder_.path() / "question", answer = folder_.path() / "answer";
  json told = {{"job", job_}, {"best", words_.told(best)}, {"seconds", seconds}};
  told["best"]["step_us"] = step_us;
  if (auto ok = write_text(question.string(), json_text(told)); !ok) return tl::unexpected(ok.error());
  std::vector<std::string> command = {"python3", "-m", "deft.ask_passes", question.string(), answer.string()};
  command.insert(command.end(), files_.begin(), files_.end());
  std::map<std::string, std::string> variables;
  if (const std::string path = python_path().string(); !path.empty()) {
    const char* const before = std::getenv("PYTHONPATH");
    variables["PYTHONPATH"] = before == nullptr || *before == '\0' ? path : path + ":" + before;
  }
  std::error_code error;
  std::filesystem::remove(answer, error);  // lest that of the last question counts
  if (auto ok = run_command(command, variables, kOfPasses); !ok) return tl::unexpected(ok.error());
  std::ifstream file(answer);
  if (!file) return fail(ErrorKind::kInvalid, "a pass has ended Python without an answer", "let it return");
  try {
    return proposals_in(json::parse(file), best, words_);
  } catch (const json::exception& wrong) {
    return fail(ErrorKind::kInternal, std::string("the answer of the passes cannot be read: ") + wrong.what());
  }
}

}  // namespace deft::tools
