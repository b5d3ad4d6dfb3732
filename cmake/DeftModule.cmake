# How every target of Deft is made: one library a folder of core/, one test program an area.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
find_package(Threads REQUIRED)

# Sanitizers are of their own: generated code needs them too (protobuf's messages have other members under TSan).
add_library(deft_sanitizers INTERFACE)
add_library(deft_options INTERFACE)
target_compile_options(deft_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
if(DEFT_FUZZ)  # another compiler than the one that the code is kept free of warnings for
  target_compile_options(deft_options INTERFACE -fsanitize=fuzzer-no-link,address,undefined
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(deft_options INTERFACE -fsanitize=address,undefined)
else()
  target_compile_options(deft_options INTERFACE -Werror)
endif()
target_include_directories(deft_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(deft_options INTERFACE Threads::Threads deft_sanitizers)
if(DEFT_SANITIZE STREQUAL "address")
  target_compile_options(deft_sanitizers INTERFACE -fsanitize=address,undefined
    -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(deft_sanitizers INTERFACE -fsanitize=address,undefined)
elseif(DEFT_SANITIZE STREQUAL "thread")
  target_compile_options(deft_sanitizers INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(deft_sanitizers INTERFACE -fsanitize=thread)
elseif(DEFT_SANITIZE)
  message(FATAL_ERROR "DEFT_SANITIZE is '${DEFT_SANITIZE}': give address, thread or nothing")
endif()

add_custom_target(fuzz_targets)

# deft_module(NAME SOURCES a.cc ... DEPS lib ...): one static library of core/.
function(deft_module NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(${NAME} STATIC ${ARG_SOURCES})
    target_link_libraries(${NAME} PUBLIC deft_options ${ARG_DEPS})
  else()
    add_library(${NAME} INTERFACE)
    target_link_libraries(${NAME} INTERFACE deft_options ${ARG_DEPS})
  endif()
endfunction()

# deft_test(NAME SOURCES a_test.cc ... DEPS lib ...): one GoogleTest program, run by ctest as one test.
function(deft_test NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${NAME} PRIVATE deft_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${NAME} COMMAND ${NAME})
endfunction()

# deft_bench(NAME SOURCES a_bench.cc ... DEPS lib ...): one Google Benchmark program.
function(deft_bench NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(${NAME} PRIVATE deft_options ${ARG_DEPS} benchmark::benchmark)
endfunction()

# deft_fuzz(NAME SOURCES a_fuzz.cc ... DEPS lib ...): one libFuzzer program; made only with -DDEFT_FUZZ=ON and clang.
# Seeds lie in the folder corpus/NAME beside it.
function(deft_fuzz NAME)
  if(NOT DEFT_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  target_link_libraries(${NAME} PRIVATE deft_options ${ARG_DEPS})
  target_link_options(${NAME} PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzz_targets ${NAME})
endfunction()

# deft_cases(N TEST ...): random cases of each property of these tests; a tenth with sanitizers, which cost that much.
function(deft_cases COUNT)
  if(DEFT_SANITIZE)
    math(EXPR COUNT "${COUNT} / 10")
  endif()
  set_tests_properties(${ARGN} PROPERTIES ENVIRONMENT "RC_PARAMS=max_success=${COUNT}")
endfunction()
