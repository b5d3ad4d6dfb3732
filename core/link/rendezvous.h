// How the nodes of a link find each other: each puts a value into the group's store, and waits for the values of all others.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/link/group.h"

namespace deft::link {

// Publishes `own` under `topic` and gives the values of all nodes, by node. A timeout names the nodes that did not come.
Result<std::vector<std::vector<std::byte>>> meet(const LinkGroup& group, std::string_view topic,
                                                 std::span<const std::byte> own);

// The store's key of a node's value.
std::string meeting_key(const LinkGroup& group, std::string_view topic, std::uint32_t node);

}  // namespace deft::link
