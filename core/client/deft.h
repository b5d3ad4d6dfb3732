/* libdeft: the C interface through which frameworks use Deft. It is stable: functions are added and never changed, and
 * DEFT_INTERFACE_VERSION rises by one with each addition.
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
 * Every function that can fail returns 0 or a DEFT_E* number, and then fills `error`, which may be NULL. All functions may be
 * called from any thread. After the job has failed (a worker, daemon or node was lost), every call fails with a text that names
 * the cause. If something is lost, all waiting ends within DEFT_TIMEOUT. The session owns its groups and their arenas, which
 * deft_release gives back before the session ends; an operation is freed by deft_finish. */
#ifndef DEFT_H
#define DEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEFT_API __attribute__((visibility("default")))
#define DEFT_INTERFACE_VERSION 13

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
  char message[2040]; /* one line: where, what, and what the user can do */
} deft_error;

typedef struct {
  const char* name; /* unique in the group */
  int dtype;        /* DEFT_FLOAT32, ... */
  int dims;         /* 0 to 8 */
  const uint64_t* shape;
  uint32_t forward_position; /* 0: forward needs this tensor first */
} deft_tensor;

typedef struct {
  int rank, size, local_rank, local_size, node, nodes;
} deft_world;

DEFT_API int deft_interface_version(void);
DEFT_API const char* deft_version(void); /* "0.1.0" */

/* The effective value of a configuration option, for instance of "policy". The text lives as long as the process. NULL and an
 * error if there is no such option, or if a DEFT_* variable is wrong. */
DEFT_API const char* deft_option(const char* name, deft_error* error);

/* The properties of a scheduling policy that a plugin needs, as bits of DEFT_POLICY_*; below 0: -DEFT_E*. A plugin asks for the
 * policy that deft_option("policy") gives, and has no list of policies. */
enum {
  /* Training gains if forward overlaps with communication; the overlap is on unless an option says otherwise. */
  DEFT_POLICY_OVERLAPS_FORWARD = 1,
  /* Updates may merge the gradients of several steps, or be applied later, so the policy needs several slots. */
  DEFT_POLICY_DELAYS_UPDATES = 2
};
DEFT_API int deft_policy_traits(const char* policy, deft_error* error);

/* Attaches to this node's daemon as a worker of the job. `options` is NULL, or "name=value" strings that end with NULL and win
 * over the DEFT_* variables. Blocks until all workers of the job have come. After DEFT_TIMEOUT it fails, and the error lists the
 * missing workers. Rank and size come from DEFT_*, torchrun, mpirun or srun, in this order. The caller ends the session by
 * deft_close. */
DEFT_API int deft_open(const char* const* options, deft_session** session, deft_error* error);

/* Ends the session cleanly and frees everything, without waiting for gradients. Arena pointers are invalid afterwards. */
DEFT_API void deft_close(deft_session* session);

DEFT_API deft_world deft_get_world(const deft_session* session);
DEFT_API int deft_node_of(const deft_session* session, int rank); /* -1: no such rank */

/* Declares tensors in the order in which backward produces them, and maps their arena. Blocks until all ranks have declared the
 * same; a difference is an error that names both ranks. `slots` (1 to 8) generations can be under way at a time. The groups of
 * all ranks are matched by the order of their declaration. */
DEFT_API int deft_declare(deft_session* session, const char* name, const deft_tensor* tensors, size_t count,
                          unsigned slots, int reduce_op, deft_group** group, deft_error* error);
/* The same, with codecs: codecs[i] says how tensor i travels, "none", "int8", "topk/ratio=0.01", ... (docs/compression.md). NULL, for one
 * tensor or for all: as the option `compression` says. An unknown codec is an error on all ranks. */
DEFT_API int deft_declare_encoded(deft_session* session, const char* name, const deft_tensor* tensors,
                                  const char* const* codecs, size_t count, unsigned slots, int reduce_op,
                                  deft_group** group, deft_error* error);
/* This worker uses the group no more: its arena pointers are invalid afterwards. Nobody is waited for: ranks release in any order, and
 * the daemons give the memory back when all have. What was handed over still counts for ranks that wait for it. No thread may hand over,
 * flush or send residuals meanwhile; who waits gets DEFT_EINVALID, and so does each later call with the handle, which lives until
 * deft_close (pointers: NULL, sizes: 0). 1: all that was handed over is reduced; 0: not yet; below 0: -DEFT_E*. */
DEFT_API int deft_release(deft_session* session, deft_group* group, deft_error* error);
DEFT_API void* deft_tensor_data(deft_group* group, size_t tensor, unsigned slot); /* NULL: out of range */
DEFT_API size_t deft_tensor_bytes(const deft_group* group, size_t tensor);

/* For gradients on a GPU. If deft_on_device gives 1, every link of the job reduces device memory (NCCL), and the arena may lie on
 * the device. Then call deft_use_device_arena before the first deft_ready, with deft_arena_bytes of zeroed device memory. In it
 * each tensor has the offset that it has from deft_tensor_data(group, 0, 0). The caller owns the memory, and keeps it until
 * deft_close, or until deft_release gives 1. Call deft_ready only when the GPU has written the gradient. If deft_on_device gives 0,
 * gradients go through the shared arena. */
DEFT_API int deft_on_device(const deft_session* session);
DEFT_API size_t deft_arena_bytes(const deft_group* group);
DEFT_API int deft_use_device_arena(deft_group* group, void* memory, deft_error* error);

/* Hands over the tensors [first, first + count), whose gradients of `generation` lie in `slot`. Nobody may write them again until
 * deft_wait has returned. Each tensor is handed over once a generation. Generations count up from 0 in each group, and take the
 * slots in turn. Under synchronous policies, and with one slot, a generation is a step. */
DEFT_API int deft_ready(deft_group* group, size_t first, size_t count, uint64_t generation, unsigned slot,
                        deft_error* error);
/* Waits until the arena holds the reduced values of these tensors of `generation`. */
DEFT_API int deft_wait(deft_group* group, size_t first, size_t count, uint64_t generation, deft_error* error);
/* 1 if these tensors are reduced, 0 if not yet, -DEFT_E* if the job has failed. Never waits. */
DEFT_API int deft_test(deft_group* group, size_t first, size_t count, uint64_t generation, deft_error* error);
/* deft_test, but waits up to timeout_us (1 or more). */
DEFT_API int deft_test_for(deft_group* group, size_t first, size_t count, uint64_t generation, uint64_t timeout_us,
                           deft_error* error);

/* A generation: the gradients of first_step to last_step, summed in `slot`, and applied before the forward of apply_step.
 * Policies that delay updates change these dates by plans, which all workers follow from the same step on. So ask for a step
 * only after waiting for all generations with an apply_step up to that step. */
typedef struct {
  uint64_t generation, first_step, last_step, apply_step;
  unsigned slot;
} deft_generation;
/* The generation of `step` for each tensor of the group; and generation generations[i] of each tensor i. A plan may give tensors
 * different dates. `generations` and `out` have an entry for each tensor. */
DEFT_API void deft_generations_of_step(const deft_group* group, uint64_t step, deft_generation* out);
DEFT_API void deft_generations_at(const deft_group* group, const uint64_t* generations, deft_generation* out);

/* Ends the generation under way before `step`, which is this worker's next step, so that everything older is applied before its
 * forward. All workers must flush at the same step. The caller then hands over the gradients that the generation has so far. */
DEFT_API int deft_flush(deft_group* group, uint64_t step, deft_error* error);

/* The gradients of `step`, this worker's next step, travel as they are, and take along what encodings have left out of gradients so far
 * (docs/compression.md). After that update nothing is missing from the model. All workers call it before the same step. */
DEFT_API int deft_send_residuals(deft_group* group, uint64_t step, deft_error* error);

/* Tells the daemon that a stage of a step begins (DEFT_FORWARD, DEFT_BACKWARD). It measures times by this. */
DEFT_API int deft_stage(deft_session* session, int stage, uint64_t step, deft_error* error);

/* Statistics of a step, by which plans that merge or delay updates are judged (the option preserver). They are optional, and may
 * be reported for a few steps only, but all ranks must report the same steps, each step once and in order. NaN, infinities and
 * negative values are DEFT_EINVALID, but the loss may be any of these: a loss that is not finite has risen. If plans should be
 * judged by the loss alone, set norms and learning rate to 0: the model of training that needs them is that of SGD. */
typedef struct {
  uint64_t step;        /* the step of the gradients */
  double local_norm;    /* squared, of this worker's own gradient */
  double average_norm;  /* squared, of the average of one step over all workers */
  double learning_rate; /* the factor of the average in the long run, with the effect of momentum */
  double loss;          /* this worker's */
  double target;        /* the lowest loss that the training can reach, 0 or more */
  int merged_as_sums;   /* 1: an update that merges k steps is made with k times the learning rate */
} deft_statistics;
DEFT_API int deft_report_statistics(deft_group* group, const deft_statistics* statistics, deft_error* error);

/* Collectives on any memory. Operations of different ranks belong together if they have the same `name`, whatever their order; of
 * each name one may be under way. dtype, count and op must be the same on all ranks; a difference is an error of this operation
 * that names both ranks. `input` is copied before the call returns. deft_finish gives the result and frees the operation. */
DEFT_API int deft_allreduce(deft_session* session, const char* name, const void* input, size_t count, int dtype,
                            int reduce_op, deft_operation** operation, deft_error* error);
DEFT_API int deft_broadcast(deft_session* session, const char* name, const void* input, size_t count, int dtype,
                            int root, deft_operation** operation, deft_error* error);
/* Each rank gives counts[rank] elements. `counts` is the same on all ranks. The output holds all elements in the order of ranks. */
DEFT_API int deft_allgather(deft_session* session, const char* name, const void* input, const size_t* counts, int dtype,
                            deft_operation** operation, deft_error* error);
DEFT_API int deft_barrier(deft_session* session, const char* name, deft_error* error);

/* Any of these collectives, with `terms`: words for the user about what else must be the same on all ranks, for instance
 * "shape [2, 3]" (up to 512 bytes, NULL: none). If they differ, that is an error of this operation, and it quotes them. */
enum { DEFT_ALLREDUCE = 1, DEFT_BROADCAST = 2, DEFT_ALLGATHER = 3, DEFT_BARRIER = 4 };
typedef struct {
  int collective;       /* DEFT_ALLREDUCE, ... */
  int dtype, reduce_op; /* not used by a barrier; reduce_op: of an all-reduce */
  int root;             /* of a broadcast */
  const char* name;
  const char* terms;
  const void* input;
  const size_t* counts; /* all-gather: a number for each rank; all-reduce and broadcast: one number; barrier: NULL */
} deft_collective;
DEFT_API int deft_start(deft_session* session, const deft_collective* collective, deft_operation** operation,
                        deft_error* error);

DEFT_API int deft_poll(deft_operation* operation, deft_error* error); /* 1: ended; 0: not yet; below 0: -DEFT_E* */
/* deft_poll, but waits up to timeout_us (1 or more) for the end. An interpreter that must run signal handlers waits in slices. */
DEFT_API int deft_poll_for(deft_operation* operation, uint64_t timeout_us, deft_error* error);
/* Waits for the end, copies the result to `output` (NULL: drops it), and frees the operation, also if it failed. */
DEFT_API int deft_finish(deft_operation* operation, void* output, deft_error* error);

/* The job's key-value store, through which workers tell each other small values: a collective would cost more. A worker may set and ask for
 * some 65,000 keys at once. A key that exists gets the new value; nothing as value takes it away. Keys: up to 1024 bytes, values: 4096.
 *
 * deft_store_ask gives the number of a question, and deft_store_answer its answer as soon as the key exists: 1: `value` has it, and
 * the question is over; 0: not within timeout_us; below 0: -DEFT_E*. */
enum { DEFT_STORE_VALUE_BYTES = 4096 };
DEFT_API int deft_store_set(deft_session* session, const char* key, const void* value, size_t bytes, deft_error* error);
DEFT_API int deft_store_ask(deft_session* session, const char* key, uint32_t* question, deft_error* error);
DEFT_API int deft_store_answer(deft_session* session, uint32_t question, uint64_t timeout_us,
                               void* value /* DEFT_STORE_VALUE_BYTES */, size_t* bytes, deft_error* error);

/* What this node's daemon tells about itself, as `deft status --json` shows it. The text lives until this thread's next call.
 * NULL and an error if no daemon answers. */
DEFT_API const char* deft_daemon_status(deft_error* error);

/* Callbacks for frameworks with asynchronous operations, in which no thread should wait.
 *
 * `callback` is called exactly once: when the tensors of `generation` are reduced, when the operation has ended, or when the job
 * has failed or deft_close was called. `error->kind` is DEFT_OK for success; `error` lives until the callback returns. If the
 * function itself returns an error, the callback is never called.
 *
 * All callbacks of a session run one after the other, in any order, on a thread of the library, which the first call starts. A
 * callback may run before the function has returned. It may call any function of this header but deft_close. It should not wait;
 * deft_finish does not wait for an operation that has ended, so a callback may call it. deft_close returns when all callbacks
 * have run. */
typedef void (*deft_callback)(void* user_data, const deft_error* error);
DEFT_API int deft_when_reduced(deft_group* group, size_t first, size_t count, uint64_t generation,
                               deft_callback callback, void* user_data, deft_error* error);
/* Call it before deft_finish of the operation. */
DEFT_API int deft_when_done(deft_operation* operation, deft_callback callback, void* user_data, deft_error* error);

#ifdef __cplusplus
}
#endif
#endif
