/* libdeft's functions for traces of the running job (docs/tracing.md), and for what a worker tells about its memory then. They are part
 * of the interface of deft.h, which is to be included before:
 *
 *   if (deft_traces(session) > seen) ...                       // a trace has begun
 *   deft_record_memory(group, &memory, &e);                    // a step's memory, for that trace
 */
#ifndef DEFT_TRACE_H
#define DEFT_TRACE_H

#ifndef DEFT_H
#error "include deft.h before deft_trace.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Traces the running job (docs/tracing.md): each node's daemon writes a file into `folder`, a path from the root, for `steps` steps, or if
 * that is 0 until deft_trace_stop. Only workers on the node of rank 0 may ask, and wait for its daemon's answer.
 * The daemons finish their files in the background. */
DEFT_API int deft_trace_start(deft_session* session, const char* folder, unsigned steps, deft_error* error);
DEFT_API int deft_trace_stop(deft_session* session, deft_error* error);

/* How many traces of the job have begun to be written, in whatever way, since this worker attached. It grows with deft_stage. */
DEFT_API uint64_t deft_traces(const deft_session* session);

/* What a step of this worker held in memory, for the trace: once for each, if at all. core/trace/record.h documents the positions that
 * `begin` and `end` number, and what `growing` is. */
enum {
  DEFT_MEMORY_WEIGHTS = 1,
  DEFT_MEMORY_OPTIMIZER = 2,
  DEFT_MEMORY_ARENA = 3,
  DEFT_MEMORY_GRADIENTS = 4,
  DEFT_MEMORY_INPUTS = 5,
  DEFT_MEMORY_ACTIVATIONS = 6,
  DEFT_MEMORY_TEMPORARY = 7
};
typedef struct {
  uint32_t tensor;     /* of the group: the first that backward produces of the layer's */
  uint64_t forward_ns; /* until the next layer began, waits left out; 0: not measured */
} deft_layer;
typedef struct {
  int part; /* DEFT_MEMORY_* */
  uint32_t begin, end, input_of;
  uint64_t bytes, growing;
} deft_memory;
typedef struct {
  uint64_t step;
  uint32_t samples; /* of the batch; 0: not known */
  const deft_layer* layers;
  size_t layer_count;
  const deft_memory* amounts;
  size_t amount_count;
} deft_step_memory;
DEFT_API int deft_record_memory(deft_group* group, const deft_step_memory* memory, deft_error* error);

#ifdef __cplusplus
}
#endif
#endif
