// The C interface (deft_arena.h) for arenas that live longer than their group.
#include <memory>

#include "core/client/api.h"
#include "core/client/deft.h"
#include "core/client/deft_arena.h"

namespace client = deft::client;
using client::missing;
using client::with_group;
using deft::Result;

struct deft_arena {
  std::shared_ptr<const deft::shm::Segment> segment;
};

int deft_keep_arena(deft_group* group, deft_arena** arena, deft_error* error) {
  if (group == nullptr || arena == nullptr) return missing("group or arena", error);
  return with_group(group, error, [&](auto& used) -> Result<void> {
    *arena = std::make_unique<deft_arena>(deft_arena{used.arena()}).release();
    return {};
  });
}

int deft_own_arena(deft_group* group, deft_error* error) {
  if (group == nullptr) return missing("group", error);
  return with_group(group, error, [](auto& used) { return used.arena()->become_private(); });
}

void deft_free_arena(deft_arena* arena) { delete arena; }
