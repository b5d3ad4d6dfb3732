#include "tools/findings.h"

#include <cstdio>

namespace deft::tools {
namespace {

constexpr const char* kHealthNames[] = {"ok", "warn", "fail"};

const char* name_of(Health health) { return kHealthNames[static_cast<std::size_t>(health)]; }

// In a field of this width.
std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

}  // namespace

nlohmann::json to_json(const std::vector<Finding>& findings) {
  auto out = nlohmann::json::array();
  for (const auto& f : findings)
    out.push_back({{"check", f.subject}, {"health", name_of(f.health)}, {"found", f.text}, {"fix", f.fix}});
  return out;
}

std::string to_text(const std::vector<Finding>& findings) {
  std::string out;
  for (const auto& f : findings) {
    out += padded(name_of(f.health), 4) + "  " + padded(f.subject, 13) + " " + f.text + "\n";
    if (!f.fix.empty()) out += std::string(6, ' ') + padded("", 13) + " -> " + f.fix + "\n";
  }
  return out;
}

}  // namespace deft::tools
