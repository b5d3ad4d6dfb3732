#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/compress/compression_option.h"
#include "core/compress/registry.h"
#include "core/link/link.h"
#include "tools/command.h"

namespace deft::tools {
namespace {

nlohmann::json options_as_json() {
  auto out = nlohmann::json::array();
  for (const auto& spec : option_table())
    out.push_back({{"name", spec.name},
                   {"default", spec.default_value},
                   {"choices", spec.choices},
                   {"daemons_only", spec.audience == Audience::kDaemon},
                   {"help", spec.help}});
  return out;
}

// For launchers: the name that an option had, and what to write instead.
nlohmann::json retired_as_json() {
  auto out = nlohmann::json::object();
  for (const auto& retired : retired_options())
    out[std::string(retired.name)] = retired.renamed_to.empty() ? retired.instead : retired.renamed_to;
  return out;
}

// Names of codecs, and what a list of links may say, stand outside of the table.
Result<void> check_codecs_and_links(const Config& config) {
  const std::string& compression = config.text("compression");
  for (const auto& name : compress::ladder_of(compression).value_or(std::vector{compression})) {
    if (name.empty() || name == "none") continue;
    if (const auto codec = compress::make_codec(name); !codec)
      return tl::unexpected(codec.error().in("DEFT_COMPRESSION"));
  }
  const auto links = link::check_links(config.text("links"));
  return links ? Result<void>{} : tl::unexpected(links.error().in("DEFT_LINKS"));
}

// For launchers: what variables and the flag file set, as users wrote it. An error tells of each value that no job can have.
Result<nlohmann::json> given_as_json() {
  const auto config = load_config({});
  if (!config) return tl::unexpected(config.error());
  if (auto ok = check_codecs_and_links(*config); !ok) return tl::unexpected(ok.error());
  auto out = nlohmann::json::object();
  for (const auto& spec : option_table())
    if (config->source(spec.name) != ConfigSource::kDefault) out[std::string(spec.name)] = config->text(spec.name);
  return out;
}

}  // namespace

Result<int> run_options(Arguments given) {
  std::vector<std::string> arguments(given.begin(), given.end());
  const bool markdown = take_flag(arguments, "--markdown");
  const bool as_json = take_flag(arguments, "--json");
  const bool retired = take_flag(arguments, "--retired");
  const bool only_given = take_flag(arguments, "--given");
  if (auto ok = expect_none(arguments); !ok) return tl::unexpected(ok.error());
  if (only_given) {
    const auto values = given_as_json();
    if (!values) return tl::unexpected(values.error());
    put_json(*values);
  } else if (retired || as_json) {
    put_json(retired ? retired_as_json() : options_as_json());
  } else {
    std::fputs((markdown ? options_as_markdown() : describe_options(Audience::kAll)).c_str(), stdout);
  }
  return kExitOk;
}

}  // namespace deft::tools
