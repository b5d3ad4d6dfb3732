# Whether the NCCL link is built: it needs the headers nccl.h and cuda_runtime_api.h, and no library: those are loaded at run
# time. Looked for in Python's packages (nvidia-nccl-cu13 beside PyTorch), CUDA's own folder and the system's.
option(DEFT_NCCL "Build the NCCL link if its headers are found" ON)
file(GLOB DEFT_NVIDIA_PACKAGES ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*/include)
find_path(DEFT_NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME PATHS ${DEFT_NVIDIA_PACKAGES} PATH_SUFFIXES include)
find_path(DEFT_CUDA_INCLUDE cuda_runtime_api.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda ${DEFT_NVIDIA_PACKAGES}
          PATH_SUFFIXES include)
if(DEFT_NCCL AND DEFT_NCCL_INCLUDE AND DEFT_CUDA_INCLUDE)
  set(DEFT_WITH_NCCL ON)
  set(DEFT_NCCL_SOURCES nccl/factory.cc nccl/link_impl.cc nccl/communicator.cc nccl/rendezvous.cc nccl/libraries.cc)
  message(STATUS "NCCL link: ${DEFT_NCCL_INCLUDE}/nccl.h, ${DEFT_CUDA_INCLUDE}/cuda_runtime_api.h")
else()
  set(DEFT_WITH_NCCL OFF)
  set(DEFT_NCCL_SOURCES nccl/absent.cc)
  message(STATUS "Deft without NCCL links: nccl.h: ${DEFT_NCCL_INCLUDE}, cuda_runtime_api.h: ${DEFT_CUDA_INCLUDE}")
endif()
