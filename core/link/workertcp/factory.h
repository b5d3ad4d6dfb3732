// Opens workertcp links.
#pragma once

#include <memory>

#include "core/link/link.h"

namespace deft::link::workertcp_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const Group& group);

}  // namespace deft::link::workertcp_backend
