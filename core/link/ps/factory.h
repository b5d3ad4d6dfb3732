// Opens ps links.
#pragma once

#include <memory>

#include "core/link/link.h"

namespace deft::link::ps_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);

}  // namespace deft::link::ps_backend
