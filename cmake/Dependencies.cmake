# What core/ needs; daemon/, tests/ and bench/ look for theirs themselves.
find_package(Boost 1.74 REQUIRED)  # Interprocess, headers only
find_path(TL_EXPECTED_INCLUDE tl/expected.hpp REQUIRED)
find_library(GLOO_LIBRARY gloo REQUIRED)
find_path(GLOO_INCLUDE gloo/allreduce.h REQUIRED)
add_library(deft_gloo INTERFACE)
target_link_libraries(deft_gloo INTERFACE ${GLOO_LIBRARY})
target_include_directories(deft_gloo SYSTEM INTERFACE ${GLOO_INCLUDE})
if(NOT EXISTS ${GLOO_INCLUDE}/gloo/common/memory.h)
  target_include_directories(deft_gloo SYSTEM INTERFACE ${PROJECT_SOURCE_DIR}/core/link/gloo/missing_headers)
endif()
