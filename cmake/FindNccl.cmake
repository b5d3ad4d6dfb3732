set(DEFT_NCCL_SOURCES nccl/absent.cc)
add_library(deft_nccl_headers INTERFACE)
