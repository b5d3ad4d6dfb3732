// The search of `deft optimize`, and single replays, of a job that bench/optimize describes.
//
//   search_bench JOB.json    one JSON object a line, in and out
//   {"replay": {"policy": "fifo", "bucket_bytes": 0, "partition_bytes": 1048576, "credit_bytes": 4194304}, "briefly": true}
//     -> {"us": 81234.5}
//   {"search": {"budget_s": 60, "brief_replays": true, "used_sizes_only": true, "coarse_first": true}}
//     -> a line for each replay, as above with "us" and "s", the time since the search began; then {"found": {...}, "s": 8.1}
//
// JOB.json: a profile as `deft simulate` takes it, the bucketing that the job runs with, its options, and its nodes: how much slower
// than the profile each computes, and by which share its steps vary.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/clock.h"
#include "core/optimize/search.h"
#include "core/partition/rebucket.h"
#include "core/replay/replay.h"

namespace deft::optimize {
namespace {

using Json = nlohmann::json;

double seconds_since(TimeUs began_us) { return static_cast<double>(MonotonicClock::now() - began_us) / 1e6; }

Result<replay::MeasuredJob> job_of(const Json& described) {
  const auto profile = model::parse_profile(described.at("profile").dump());
  if (!profile) return tl::unexpected(profile.error());
  auto bucketed = partition::rebucket(*profile, described.at("bucketing").get<std::string>());
  if (!bucketed) return tl::unexpected(bucketed.error());
  replay::MeasuredJob job;
  job.profile = *std::move(bucketed);
  job.options = described.at("options").get<std::map<std::string, std::string>>();
  for (const auto& node : described.at("nodes")) {
    job.nodes.push_back({.slowdown = node.at("slowdown").get<double>()});
    job.spreads.push_back(node.at("varies").get<double>());
  }
  const auto varied = replay::with_buckets(job, "profile");
  if (!varied) return tl::unexpected(varied.error());
  const auto now = replay::replay(*varied, {});
  if (!now) return tl::unexpected(now.error());
  job.steps_us = {now->step_us_p50};
  return job;
}

Settings settings_of(const Json& json) {
  return {.policy = json.at("policy").get<std::string>(),
          .bucket_bytes = json.at("bucket_bytes").get<std::uint64_t>(),
          .partition_bytes = json.at("partition_bytes").get<std::uint64_t>(),
          .credit_bytes = json.at("credit_bytes").get<std::uint64_t>()};
}

Json json_of(const Settings& settings, double us) {
  return {{"policy", settings.policy},
          {"bucket_bytes", settings.bucket_bytes},
          {"partition_bytes", settings.partition_bytes},
          {"credit_bytes", settings.credit_bytes},
          {"us", us}};
}

void say(const Json& json) {
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
}

void run_search(const replay::MeasuredJob& job, const Json& asked) {
  const auto budget_s = asked.at("budget_s").get<double>();
  const TimeUs began_us = MonotonicClock::now();
  const SearchLimits limits{.policies = exact_policies(),
                            .speedups = {.brief_replays = asked.at("brief_replays").get<bool>(),
                                         .used_sizes_only = asked.at("used_sizes_only").get<bool>(),
                                         .coarse_first = asked.at("coarse_first").get<bool>()},
                            .tried = [&](const Settings& settings, double us) {
                              Json line = json_of(settings, us);
                              line["s"] = seconds_since(began_us);
                              say(line);
                            }};
  const auto found = search(job, limits, [&] { return 1 - seconds_since(began_us) / budget_s; });
  if (!found) return say({{"error", found.error().message()}});
  say({{"found", json_of(found->settings, found->step_us)},
       {"traced_us", found->traced_us},
       {"s", seconds_since(began_us)}});
}

int serve(const replay::MeasuredJob& job) {
  for (std::string line; std::getline(std::cin, line);) {
    const Json asked = Json::parse(line);
    if (asked.contains("search"))
      run_search(job, asked.at("search"));
    else
      say({{"us", replayed_us(job, settings_of(asked.at("replay")), {}, asked.at("briefly").get<bool>())}});
  }
  return 0;
}

}  // namespace
}  // namespace deft::optimize

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: search_bench JOB.json; see bench/optimize\n");
    return 2;
  }
  std::ifstream file(argv[1]);
  const auto job = deft::optimize::job_of(nlohmann::json::parse(file));
  if (!job) {
    std::fprintf(stderr, "search_bench: %s\n", job.error().message().c_str());
    return 2;
  }
  deft::optimize::say({{"buckets", job->profile.buckets.size()}, {"step_us", job->steps_us.front()}});
  return deft::optimize::serve(*job);
}
