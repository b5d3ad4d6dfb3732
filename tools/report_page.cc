#include "tools/report_page.h"

#include <array>
#include <string_view>
#include <utility>

#include "report_files.h"  // made by the build

namespace deft::tools {
namespace {

// JSON in which no text can end the script element that holds it.
std::string harmless(const nlohmann::json& data) {
  const std::string text = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text)
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  return out;
}

}  // namespace

std::string report_page(const nlohmann::json& data) {
  const std::array<std::pair<std::string_view, std::string>, 6> parts = {{
      {"/*dygraphs.css*/", std::string(report_files::kDygraphsCss)},
      {"/*page.css*/", std::string(report_files::kPageCss)},
      {"/*dygraphs.js*/", std::string(report_files::kDygraphsJs)},
      {"/*page.js*/", std::string(report_files::kPageJs)},
      {"/*timeline.js*/", std::string(report_files::kTimelineJs)},
      {"/*data*/", harmless(data)},
  }};
  std::string page(report_files::kPageHtml);
  std::size_t from = 0;
  for (const auto& [mark, text] : parts) {  // in the order of the page, so that no text is searched for marks
    const std::size_t at = page.find(mark, from);
    page.replace(at, mark.size(), text);
    from = at + text.size();
  }
  return page;
}

}  // namespace deft::tools
