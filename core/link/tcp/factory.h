// Opens tcp links.
#pragma once

#include <memory>

#include "core/link/link.h"

namespace deft::link::tcp_backend {

Result<std::unique_ptr<Link>> open(const LinkSpec& spec, const LinkGroup& group);

}  // namespace deft::link::tcp_backend
