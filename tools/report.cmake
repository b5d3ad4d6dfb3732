# Puts the files of the report's page into a header: report_files.h. As a script (cmake -P) it writes OUT from FOLDER and DYGRAPHS.
if(CMAKE_SCRIPT_MODE_FILE)
  set(header "// Made by tools/report.cmake.\n#pragma once\n#include <string_view>\n\nnamespace deft::tools::report_files {\n")
  foreach(entry kPageHtml:${FOLDER}/page.html kPageCss:${FOLDER}/page.css kPageJs:${FOLDER}/page.js
          kTimelineJs:${FOLDER}/timeline.js kDygraphsCss:${DYGRAPHS}/dygraph.min.css kDygraphsJs:${DYGRAPHS}/dygraph.min.js)
    string(REGEX MATCH "^([^:]*):(.*)$" matched "${entry}")
    file(READ "${CMAKE_MATCH_2}" bytes HEX)
    set(name ${CMAKE_MATCH_1})
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
    string(APPEND header "inline constexpr char ${name}Bytes[] = \"${bytes}\";\n"
      "inline constexpr std::string_view ${name}(${name}Bytes, sizeof(${name}Bytes) - 1);\n")
  endforeach()
  file(WRITE "${OUT}" "${header}}  // namespace deft::tools::report_files\n")
  return()
endif()

find_path(DYGRAPHS_FOLDER dygraph.min.js PATHS /usr/share/javascript/dygraphs /usr/share/nodejs/dygraphs REQUIRED
  DOC "The folder of dygraph.min.js (Debian: libjs-dygraphs)")
set(REPORT_FILES ${CMAKE_CURRENT_SOURCE_DIR}/report/page.html ${CMAKE_CURRENT_SOURCE_DIR}/report/page.css
  ${CMAKE_CURRENT_SOURCE_DIR}/report/page.js ${CMAKE_CURRENT_SOURCE_DIR}/report/timeline.js)
add_custom_command(OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/report/report_files.h
  COMMAND ${CMAKE_COMMAND} -DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}/report -DDYGRAPHS=${DYGRAPHS_FOLDER}
    -DOUT=${CMAKE_CURRENT_BINARY_DIR}/report/report_files.h -P ${CMAKE_CURRENT_SOURCE_DIR}/report.cmake
  DEPENDS ${REPORT_FILES} ${CMAKE_CURRENT_SOURCE_DIR}/report.cmake)
