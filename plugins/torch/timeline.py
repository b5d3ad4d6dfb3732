"""Horovod's start_timeline() and stop_timeline().

Deft traces a job from its start, when all nodes agree, and not from some moment on. So these functions start nothing:
they tell where the trace is, or how to get one.
"""

import logging

import deft
from deft.process_sets import global_process_set

log = logging.getLogger("deft.torch")


def start_timeline(file_path, mark_cycles=False):
    """With DEFT_TRACE it tells where the trace is written to; without, it is an error. The arguments are Horovod's."""
    _check_traced("start_timeline")
    if global_process_set.rank() == 0:
        log.info(
            "start_timeline(%r): the job is traced from its start into %s, and that file is not written; `deft trace "
            "merge` makes a timeline of the trace",
            file_path,
            deft.option("trace"),
        )


def stop_timeline():
    """With DEFT_TRACE it does nothing: the trace ends with the job, or with DEFT_TRACE_STEPS."""
    _check_traced("stop_timeline")


def _check_traced(call):
    global_process_set.session()
    if not deft.option("trace"):
        raise ValueError(
            f"{call}() cannot begin or end a trace in a running job: set DEFT_TRACE=FOLDER, and DEFT_TRACE_STEPS "
            "for some steps only, before the start; `deft trace merge FOLDER` then makes the timeline"
        )
