/* libdeft's functions for frameworks whose arrays lie in the arena, and may live longer than the group or the session. They are part of
 * the interface of deft.h, which is to be included before:
 *
 *   deft_arena* arena;
 *   deft_keep_arena(group, &arena, &e);              // arrays are made of deft_tensor_data(group, ...)
 *   deft_own_arena(group, &e);                       // before deft_release or deft_close: the arrays keep what they hold
 *   deft_free_arena(arena);                          // when the last of the arrays goes
 */
#ifndef DEFT_ARENA_H
#define DEFT_ARENA_H

#ifndef DEFT_H
#error "include deft.h before deft_arena.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct deft_arena deft_arena;

/* Keeps the group's arena mapped at its place, also after deft_release and deft_close, until deft_free_arena. By itself it does not
 * keep what the arena holds: the daemons free it, and zeros are read then. */
DEFT_API int deft_keep_arena(deft_group* group, deft_arena** arena, deft_error* error);

/* Gives the arena memory of this process at the same place, with what it holds now. The daemon does not see it, so no gradient may be
 * handed over any more, and what was is reduced. Threads of the caller may work in the arena meanwhile. DEFT_EEXHAUSTED if there is not
 * enough memory. */
DEFT_API int deft_own_arena(deft_group* group, deft_error* error);

/* Any thread, once, after deft_close too. NULL is nothing. */
DEFT_API void deft_free_arena(deft_arena* arena);

#ifdef __cplusplus
}
#endif
#endif
