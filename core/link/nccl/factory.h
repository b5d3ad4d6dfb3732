// Opens NCCL links.
#pragma once

#include <memory>
#include <string>

#include "core/link/link.h"

namespace deft::link::nccl_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);

// Whether it can be used on this machine now, for people: "NCCL 2.27.3, 8 GPUs", or the missing part.
Result<std::string> usable();

}  // namespace deft::link::nccl_backend
