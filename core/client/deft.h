/* libdeft: the C interface through which frameworks use Deft. Stable: functions are added, never changed; the version
 * rises by one with each addition.
 *
 *   deft_session* s;  deft_error e;
 *   if (deft_open(NULL, &s, &e)) die(e.message);            // settings from DEFT_* and the launcher's variables
 *   deft_group* g;
 *   deft_declare(s, "sgd", tensors, n, 1, DEFT_SUM, &g, &e); // collective: all ranks declare the same
 *   float* grad = deft_tensor_data(g, 3, 0);                 // tensor 3 in slot 0 of the shared arena
 *   ... write the gradient ...
 *   deft_ready(g, 3, 1, step, 0, &e);                        // asynchronous; with one slot, steps are generations
 *   deft_wait(g, 3, 1, step, &e);                            // the arena now holds the sum over all workers
 *   deft_close(s);
 *
 * Every function that can fail returns 0 or a DEFT_E* number and fills `error`, which may be NULL. All functions may be
 * called from any thread. After the job has failed (a worker, daemon or node was lost), every call fails with the text
 * that names the cause. Waiting ends by itself within DEFT_TIMEOUT when something is lost. */
#ifndef DEFT_H
#define DEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEFT_API __attribute__((visibility("default")))
#define DEFT_INTERFACE_VERSION 6

typedef struct deft_session deft_session;
typedef struct deft_group deft_group;         /* the tensors of one optimizer */
typedef struct deft_operation deft_operation; /* a collective under way */

enum {
  DEFT_OK = 0,
  DEFT_EINVALID = 1,
  DEFT_EMISMATCH = 2,
  DEFT_ETIMEOUT = 3,
  DEFT_ELOST = 4,
  DEFT_EEXHAUSTED = 5,
  DEFT_EVIOLATION = 6,
  DEFT_EUNAVAILABLE = 7,
  DEFT_EINTERNAL = 8
};
enum {
  DEFT_FLOAT32 = 1,
  DEFT_FLOAT64 = 2,
  DEFT_FLOAT16 = 3,
  DEFT_BFLOAT16 = 4,
  DEFT_INT32 = 5,
  DEFT_INT64 = 6,
  DEFT_UINT8 = 7,
  DEFT_INT8 = 8
};
enum { DEFT_SUM = 1, DEFT_MIN = 2, DEFT_MAX = 3 };
enum { DEFT_FORWARD = 1, DEFT_BACKWARD = 2 };

typedef struct {
  int kind;           /* DEFT_E* */
  char message[2040]; /* what, where and what to do, one line */
} deft_error;

typedef struct {
  const char* name; /* unique in the group */
  int dtype;        /* DEFT_FLOAT32, ... */
  int dims;         /* 0 to 8 */
  const uint64_t* shape;
  uint32_t forward_position; /* 0: the tensor that forward needs first */
} deft_tensor;

typedef struct {
  int rank, size, local_rank, local_size, node, nodes;
} deft_world;

DEFT_API int deft_interface_version(void);
DEFT_API const char* deft_version(void); /* "0.1.0" */

/* The effective value of a configuration option ("policy"), from the one table; lives as long as the process.
 * NULL and an error for a name that is not in the table or a DEFT_* variable that is wrong. */
DEFT_API const char* deft_option(const char* name, deft_error* error);

/* What a plugin has to know of a scheduling policy: bits of DEFT_POLICY_*, or below 0: -DEFT_E*. Plugins ask for the policy
 * that deft_option("policy") gives, and list no policies of their own. */
enum {
  DEFT_POLICY_OVERLAPS_FORWARD =
      1, /* gains if forward overlaps with communication; on unless an option says otherwise */
  DEFT_POLICY_DELAYS_UPDATES =
      2 /* may merge the gradients of several steps, or apply them later: wants several slots */
};
DEFT_API int deft_policy_traits(const char* policy, deft_error* error);

/* Attaches to this node's daemon as `job`'s worker; `options` holds "name=value" strings ended by NULL that win over the
 * DEFT_* variables, or is NULL. Blocks until all workers of the job have come (deadline: DEFT_TIMEOUT; the error
 * lists who is missing). Rank and size come from DEFT_*, torchrun, mpirun or srun, in this order. */
DEFT_API int deft_open(const char* const* options, deft_session** session, deft_error* error);

/* Ends cleanly: waits for nothing, frees everything. Arena pointers are invalid afterwards. */
DEFT_API void deft_close(deft_session* session);

DEFT_API deft_world deft_get_world(const deft_session* session);
DEFT_API int deft_node_of(const deft_session* session, int rank); /* -1: no such rank */

/* Declares tensors in the order in which backward produces them and maps their arena. Collective: blocks until all ranks
 * have declared the same; a difference is an error that names both. `slots` (1 to 8): generations under way at a time.
 * Groups are matched by the order of their declaration. */
DEFT_API int deft_declare(deft_session* session, const char* name, const deft_tensor* tensors, size_t count,
                          unsigned slots, int reduce_op, deft_group** group, deft_error* error);
DEFT_API void* deft_tensor_data(deft_group* group, size_t tensor, unsigned slot); /* NULL: out of range */
DEFT_API size_t deft_tensor_bytes(const deft_group* group, size_t tensor);

/* For gradients on a GPU. Where deft_on_device gives 1, every link of the job reduces device memory (NCCL), and the arena may
 * lie there: deft_use_device_arena, before the first deft_ready, names deft_arena_bytes of zeroed device memory, in which
 * each tensor has the offset that it has from deft_tensor_data(group, 0, 0). The caller owns it until deft_close. deft_ready
 * still means that the gradient is there: the GPU has written it. Where it gives 0, gradients go through the shared arena. */
DEFT_API int deft_on_device(const deft_session* session);
DEFT_API size_t deft_arena_bytes(const deft_group* group);
DEFT_API int deft_use_device_arena(deft_group* group, void* memory, deft_error* error);

/* Tensors [first, first + count) hold their gradients of `generation` in `slot`: hand them over. They must not be written
 * again until deft_wait has returned. Each tensor once a generation; generations count up from 0 by 1 in each group, and
 * have the slots in turn. Under synchronous policies, and with one slot, a generation is a step. */
DEFT_API int deft_ready(deft_group* group, size_t first, size_t count, uint64_t generation, unsigned slot,
                        deft_error* error);
/* Waits until the arena holds the reduced values of these tensors of `generation`. */
DEFT_API int deft_wait(deft_group* group, size_t first, size_t count, uint64_t generation, deft_error* error);
/* 1: reduced; 0: not yet; below 0: failed, -DEFT_E*. */
DEFT_API int deft_test(deft_group* group, size_t first, size_t count, uint64_t generation, deft_error* error);

/* What one update applies: the gradients of first_step to last_step, summed in `slot`, before the forward of apply_step.
 * Policies that delay updates change these dates by plans that all workers follow from the same step on: ask for a step
 * once all generations with an apply_step up to it were waited for. */
typedef struct {
  uint64_t generation, first_step, last_step, apply_step;
  unsigned slot;
} deft_generation;
/* A plan may date tensors differently: `out` holds one for each tensor of the group, and so does `generations`. */
DEFT_API void deft_generations_of_step(const deft_group* group, uint64_t step, deft_generation* out);
DEFT_API void deft_generations_at(const deft_group* group, const uint64_t* generations, deft_generation* out);

/* Ends the generation under way before `step`, the next one of this worker, so that everything older is applied before its
 * forward. All workers do it at the same step. The caller then hands over what the generation has so far. */
DEFT_API int deft_flush(deft_group* group, uint64_t step, deft_error* error);

/* A stage of a step begins (DEFT_FORWARD, DEFT_BACKWARD), for the profiler and for policies. */
DEFT_API int deft_stage(deft_session* session, int stage, uint64_t step, deft_error* error);

/* What plans that merge or delay updates are judged by (the option preserver). Optional; now and then is enough, but of
 * the same steps on all ranks, each step once and in order. NaN, infinities and negative values are DEFT_EINVALID, but
 * for the loss, which may be negative. Norms and learning rate are 0 where the loss alone is to judge by: the model of
 * training that needs them is that of SGD. */
typedef struct {
  uint64_t step;        /* of which the gradients are */
  double local_norm;    /* squared, of this worker's own gradient */
  double average_norm;  /* squared, of the average of one step over all workers */
  double learning_rate; /* what the average is multiplied by in the long run, momentum counted in */
  double loss;          /* this worker's */
  double target;        /* the lowest that the loss can reach, 0 or more */
  int merged_as_sums;   /* 1: an update that merges k steps is made with k times the learning rate */
} deft_statistics;
DEFT_API int deft_report_statistics(deft_group* group, const deft_statistics* statistics, deft_error* error);

/* Collectives on any memory. All ranks give the same `name`, matched across ranks in any order (one under way a name),
 * the same dtype, count and op; a difference is an error of this operation that names both. `input` is copied before the
 * call returns. The result is written to `output` by deft_finish. */
DEFT_API int deft_allreduce(deft_session* session, const char* name, const void* input, size_t count, int dtype,
                            int reduce_op, deft_operation** operation, deft_error* error);
DEFT_API int deft_broadcast(deft_session* session, const char* name, const void* input, size_t count, int dtype,
                            int root, deft_operation** operation, deft_error* error);
/* Each rank gives counts[rank] elements (counts are the same on all ranks); the output holds all in the order of ranks. */
DEFT_API int deft_allgather(deft_session* session, const char* name, const void* input, const size_t* counts, int dtype,
                            deft_operation** operation, deft_error* error);
DEFT_API int deft_barrier(deft_session* session, const char* name, deft_error* error);

DEFT_API int deft_poll(deft_operation* operation, deft_error* error); /* as deft_test */
/* Waits, copies the result to `output` (NULL: drop it) and frees the operation, also when it failed. */
DEFT_API int deft_finish(deft_operation* operation, void* output, deft_error* error);

/* Completions without a thread that waits, for frameworks with asynchronous operations.
 *
 * `callback` is called exactly once, when the tensors of `generation` are reduced or the operation has ended; or, with its
 * error, when the job has failed or deft_close was called. `error->kind` is DEFT_OK if all went well; `error` lives until the
 * callback returns. If the function itself returns an error, the callback is never called.
 *
 * All callbacks of a session run one after the other on a thread of the library, which the first call starts; in any order,
 * perhaps before the function has returned. A callback may call any function of this header but deft_close. It should not
 * wait: deft_finish does not for an operation that has ended, and may be called by the callback. deft_close returns when
 * all callbacks have run. */
typedef void (*deft_callback)(void* user_data, const deft_error* error);
DEFT_API int deft_when_reduced(deft_group* group, size_t first, size_t count, uint64_t generation,
                               deft_callback callback, void* user_data, deft_error* error);
/* Before deft_finish. */
DEFT_API int deft_when_done(deft_operation* operation, deft_callback callback, void* user_data, deft_error* error);

#ifdef __cplusplus
}
#endif
#endif
