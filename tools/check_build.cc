#include <zmq.h>

#include <boost/version.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/policy_traits.h"
#include "core/ipc/messages.h"
#include "core/link/backends.h"
#include "core/link/factories.h"
#include "core/shm/layout.h"
#include "tools/command.h"
#include "tools/installed.h"

namespace deft::tools {
namespace {

using nlohmann::json;

json feature(std::string_view name, bool here, std::string_view why) {
  return {{"name", name}, {"here", here}, {"why", why}};
}

// MPI links need a program and a library beside the build. A wheel holds neither.
json link_feature(const link::Backend& backend) {
  if (backend.built && backend.name == "mpi") {
    const auto version = link::mpi_backend::library_version();
    if (!version) return feature(backend.name, false, version.error().what);
  }
  return feature(backend.name, backend.built, backend.summary);
}

json links() {
  json all = json::array();
  for (const auto& backend : link::backends()) all.push_back(link_feature(backend));
  return all;
}

json policies() {
  json names = json::array();
  for (const auto& traits : kPolicyTraits)
    if (!traits.simulator_only) names.push_back(traits.name);
  return names;
}

json plugins() {
  static constexpr std::pair<const char*, const char*> kFrameworks[] = {{"torch", "pytorch (deft.torch)"},
                                                                        {"tensorflow", "tensorflow (deft.tensorflow)"},
                                                                        {"mxnet", "mxnet (deft.mxnet)"}};
  const auto package = python_package();
  const bool base = !package.empty();
  json found = json::array();
  found.push_back(feature("python (deft)", base,
                          base ? package.string() : "no folder deft beside this program: run scripts/build"));
  for (const auto& [folder, name] : kFrameworks) {
    const auto place = package / folder;
    const bool here = base && std::filesystem::exists(place / "__init__.py");
    found.push_back(feature(name, here, here ? place.string() : "not built"));
  }
  return found;
}

std::string zmq_text() {
  int major = 0, minor = 0, patch = 0;
  zmq_version(&major, &minor, &patch);
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

json describe_build() {
  return {
      {"version", DEFT_VERSION},
      {"compiler", DEFT_COMPILER},
      {"build_type", DEFT_BUILD_TYPE},
      {"sanitizer", DEFT_SANITIZER},
      {"protocol", ipc::kProtocolVersion},
      {"ring_layout", shm::kLayoutVersion},
      {"boost", BOOST_LIB_VERSION},
      {"zeromq", zmq_text()},
      {"links", links()},
      {"policies", policies()},
      {"plugins", plugins()},
      {"features",
       json::array({feature("curve", zmq_has("curve") == 1, "encrypted control messages (option secret_file)")})},
  };
}

void print_features(const char* title, const json& features) {
  std::printf("%s\n", title);
  for (const auto& item : features)
    std::printf("  [%c] %-28s %s\n", item["here"].get<bool>() ? 'X' : ' ', item["name"].get<std::string>().c_str(),
                item["why"].get<std::string>().c_str());
}

void print_build(const json& build) {
  std::printf("deft %s, %s, %s%s\n", DEFT_VERSION, DEFT_COMPILER, DEFT_BUILD_TYPE,
              *DEFT_SANITIZER == '\0' ? "" : ", sanitizer " DEFT_SANITIZER);
  std::printf("protocol %u, ring layout %u, boost %s, zeromq %s\n\n", ipc::kProtocolVersion, shm::kLayoutVersion,
              BOOST_LIB_VERSION, build["zeromq"].get<std::string>().c_str());
  print_features("links", build["links"]);
  std::printf("policies\n");
  for (const auto& policy : build["policies"]) std::printf("  [X] %s\n", policy.get<std::string>().c_str());
  print_features("plugins", build["plugins"]);
  print_features("features", build["features"]);
}

}  // namespace

Result<int> run_check_build(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  const bool as_json = take_flag(arguments, "--json");
  if (auto ok = expect_none(arguments); !ok) return tl::unexpected(ok.error());
  const json build = describe_build();
  if (as_json)
    put_json(build);
  else
    print_build(build);
  return kExitOk;
}

}  // namespace deft::tools
