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
if(NOT DEFT_SANITIZE)
  target_compile_options(deft_options INTERFACE -Werror)
endif()
target_include_directories(deft_options INTERFACE ${PROJECT_SOURCE_DIR})
target_link_libraries(deft_options INTERFACE Threads::Threads deft_sanitizers)
# -Og compiles in half the time of -O2 with these checks, and its tests are as quick. Its warnings are wrong at times
# (maybe-uninitialized), so only the normal tree is kept free of warnings. AddressSanitizer finds null pointers and accesses
# outside of an object; UBSan's own checks of both take a third of the compile time.
if(DEFT_SANITIZE)
  target_compile_options(deft_sanitizers INTERFACE -Og -fno-omit-frame-pointer)
endif()
set(DEFT_FUZZ OFF)
if(DEFT_SANITIZE STREQUAL "address")
  target_compile_options(deft_sanitizers INTERFACE -fsanitize=address,undefined -fno-sanitize=null,object-size
    -fno-sanitize-recover=undefined)
  target_link_options(deft_sanitizers INTERFACE -fsanitize=address,undefined)
  # libFuzzer needs clang, and the same checks as the tests. So with clang this tree holds the fuzz targets, too.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    set(DEFT_FUZZ ON)
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libclang_rt.asan-x86_64.so
      OUTPUT_VARIABLE DEFT_RUNTIME OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    get_filename_component(DEFT_RUNTIME ${DEFT_RUNTIME} DIRECTORY)
    target_compile_options(deft_options INTERFACE -fsanitize=fuzzer-no-link)
    target_compile_definitions(deft_options INTERFACE __SANITIZE_ADDRESS__)  # as GCC says it
    # Python without a sanitizer loads libdeft, and the runtime before it: a runtime of its own.
    target_link_options(deft_sanitizers INTERFACE -shared-libasan -Wl,-rpath,${DEFT_RUNTIME})
  endif()
elseif(DEFT_SANITIZE STREQUAL "thread")
  target_compile_options(deft_sanitizers INTERFACE -fsanitize=thread)
  target_link_options(deft_sanitizers INTERFACE -fsanitize=thread)
elseif(DEFT_SANITIZE)
  message(FATAL_ERROR "DEFT_SANITIZE is '${DEFT_SANITIZE}': give address, thread or nothing")
endif()

# Test code is compiled in two thirds of the time without the optimizer, or without UBSan: neither is for test code. GCC takes
# the least time with -Og, and clang with -O0.
add_library(deft_test_options INTERFACE)
if(DEFT_SANITIZE STREQUAL "address")
  target_compile_options(deft_test_options INTERFACE -fno-sanitize=undefined)
  if(DEFT_FUZZ)
    target_compile_options(deft_test_options INTERFACE -fno-sanitize=fuzzer-no-link -O0)
  endif()
elseif(NOT DEFT_SANITIZE)
  target_compile_options(deft_test_options INTERFACE $<$<CONFIG:RelWithDebInfo>:-Og>)
endif()

# Programs of tests are linked by gold, which takes half of the processor time. The product keeps the system's own linker.
include(CheckLinkerFlag)
check_linker_flag(CXX -fuse-ld=gold DEFT_HAS_GOLD)
if(DEFT_HAS_GOLD)
  target_link_options(deft_test_options INTERFACE -fuse-ld=gold)
endif()

add_custom_target(fuzz_targets)
add_custom_target(deft_tests)           # every test program
add_custom_target(deft_threaded_tests)  # those of them that run threads

# Several sources as one file compile in half the time, and a change of one compiles all of them: for trees that nobody
# works in.
option(DEFT_UNITY "Compile the sources in batches" OFF)
set(DEFT_BATCH 16)
if(DEFT_UNITY)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()

# deft_batches(OUT NAME source ...): the sources, or with DEFT_UNITY files in the build folder that include several of them.
# Those name them from the root of the tree, so that ccache knows them again in another clone. A source with compile
# options or the property SKIP_UNITY_BUILD_INCLUSION stays alone.
function(deft_batches OUT NAME)
  set(${OUT} ${ARGN} PARENT_SCOPE)
  if(NOT DEFT_UNITY)
    return()
  endif()
  set(FILES "")
  set(PLACES "")
  foreach(SOURCE ${ARGN})
    get_source_file_property(OPTIONS ${SOURCE} COMPILE_OPTIONS)
    get_source_file_property(SKIP ${SOURCE} SKIP_UNITY_BUILD_INCLUSION)
    if(OPTIONS OR SKIP)
      list(APPEND FILES ${SOURCE})
    else()
      get_filename_component(PLACE ${SOURCE} ABSOLUTE)
      file(RELATIVE_PATH PLACE ${PROJECT_SOURCE_DIR} ${PLACE})
      list(APPEND PLACES ${PLACE})
    endif()
  endforeach()
  execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/batches.py ${PROJECT_SOURCE_DIR} ${DEFT_BATCH} ${PLACES}
    OUTPUT_VARIABLE LINES OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "\"\n#include \"" LINES "${LINES}")
  string(REPLACE "\n#" "@#" LINES "${LINES}")  # a batch a line, its includes separated by @
  string(REPLACE "\n" ";" LINES "${LINES}")
  set(COUNT 0)
  foreach(LINE ${LINES})
    math(EXPR COUNT "${COUNT} + 1")
    string(REPLACE "@#" "\n#" LINE "${LINE}")
    set(FILE ${CMAKE_CURRENT_BINARY_DIR}/${NAME}_batch_${COUNT}.cc)
    file(CONFIGURE OUTPUT ${FILE} CONTENT "#include \"${LINE}\"\n" @ONLY)
    list(APPEND FILES ${FILE})
  endforeach()
  set(${OUT} ${FILES} PARENT_SCOPE)
endfunction()

# deft_module(NAME SOURCES a.cc ... DEPS lib ...): one static library of core/.
function(deft_module NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    deft_batches(FILES ${NAME} ${ARG_SOURCES})
    add_library(${NAME} STATIC ${FILES})
    target_link_libraries(${NAME} PUBLIC deft_options ${ARG_DEPS})
  else()
    add_library(${NAME} INTERFACE)
    target_link_libraries(${NAME} INTERFACE deft_options ${ARG_DEPS})
  endif()
endfunction()

# A run of all suites runs most programs only in the sanitizers' trees, where they find more. The normal tree is then built
# without them.
option(DEFT_SANITIZED_TESTS "Build the test programs, too, that do the same in a sanitizer's tree" ON)

# deft_precompiled(NAME): the sources of this test program do not parse these headers again, which takes a third of their compile
# time. All test programs have the same flags, so one precompiled header serves all. In a tree without batches each source
# shows what it fails to include. Clang's header holds the path of its tree, so ccache would serve no other tree: not by Clang.
function(deft_precompiled NAME)
  if(NOT DEFT_UNITY OR CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    return()
  endif()
  if(NOT TARGET deft_test_headers)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/test_headers.cc CONTENT "int main() {}\n")
    add_executable(deft_test_headers EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/test_headers.cc)
    set_target_properties(deft_test_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/CMakeFiles)
    target_link_libraries(deft_test_headers PRIVATE deft_options GTest::gmock deft_test_options)
    target_precompile_headers(deft_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h> <rapidcheck.h> <algorithm> <array> <chrono>
      <filesystem> <fstream> <functional> <map> <memory> <optional> <random> <set> <sstream> <string> <thread> <tl/expected.hpp> <vector>)
  endif()
  target_precompile_headers(${NAME} REUSE_FROM deft_test_headers)
endfunction()

# deft_test(NAME [THREADS] [NATIVE] SOURCES a_test.cc ... DEPS lib ...): one GoogleTest program, run by ctest as one test.
# THREADS says that it, or what it tests, runs threads: these are the programs that ThreadSanitizer runs. NATIVE: it does more
# without a sanitizer, for instance more random cases, so it is always part of the normal tree.
function(deft_test NAME)
  cmake_parse_arguments(ARG "THREADS;NATIVE" "" "SOURCES;DEPS" ${ARGN})
  deft_batches(FILES ${NAME} ${ARG_SOURCES})
  add_executable(${NAME} ${FILES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${NAME} PRIVATE deft_options ${ARG_DEPS} GTest::gmock GTest::gtest_main deft_test_options)
  deft_precompiled(${NAME})
  add_test(NAME ${NAME} COMMAND ${NAME})
  set(LABELS gtest)
  if(ARG_THREADS)
    add_dependencies(deft_threaded_tests ${NAME})
    list(APPEND LABELS threads)
  endif()
  if(NOT ARG_NATIVE)
    list(APPEND LABELS sanitized)
  endif()
  if(NOT DEFT_SANITIZED_TESTS AND "sanitized" IN_LIST LABELS)
    set_target_properties(${NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
  else()
    add_dependencies(deft_tests ${NAME})
  endif()
  set_tests_properties(${NAME} PROPERTIES LABELS "${LABELS}")
endfunction()

# deft_skipped_test(NAME REASON): stands for a program that this build cannot have, so that the results show it.
function(deft_skipped_test NAME REASON)
  add_test(NAME ${NAME} COMMAND sh -c "echo '${REASON}'; exit 77")
  set_tests_properties(${NAME} PROPERTIES SKIP_RETURN_CODE 77 LABELS "gtest;threads;sanitized")
endfunction()

# deft_bench(NAME SOURCES a_bench.cc ... DEPS lib ...): one Google Benchmark program.
function(deft_bench NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  target_link_libraries(${NAME} PRIVATE deft_options ${ARG_DEPS} benchmark::benchmark)
endfunction()

# libFuzzer comes with AddressSanitizer's runtime in the program.
add_library(deft_fuzz_options INTERFACE)
target_link_options(deft_fuzz_options INTERFACE -fsanitize=fuzzer -static-libsan)

# deft_fuzz(NAME SOURCES a_fuzz.cc ... DEPS lib ...): one libFuzzer program; made only with -DDEFT_SANITIZE=address and clang.
# Seeds lie in the folder corpus/NAME beside it.
function(deft_fuzz NAME)
  if(NOT DEFT_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} EXCLUDE_FROM_ALL ${ARG_SOURCES})
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  target_link_libraries(${NAME} PRIVATE deft_options ${ARG_DEPS} deft_fuzz_options)
  add_dependencies(fuzz_targets ${NAME})
endfunction()

# deft_cases(N TEST ...): random cases of each property of these NATIVE tests; a tenth with sanitizers, which cost that much. They take
# long, so ctest begins with them when it runs several tests at a time.
function(deft_cases COUNT)
  if(DEFT_SANITIZE)
    math(EXPR COUNT "${COUNT} / 10")
  endif()
  set_tests_properties(${ARGN} PROPERTIES ENVIRONMENT "RC_PARAMS=max_success=${COUNT}" COST 100)
endfunction()
