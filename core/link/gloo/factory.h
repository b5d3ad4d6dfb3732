// Opens gloo links.
#pragma once

#include <memory>

#include "core/link/link.h"

namespace deft::link::gloo_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);

}  // namespace deft::link::gloo_backend
