"""Traces of the running job, from the script itself: docs/tracing.md.

    deft.trace(steps=20)                  # the next 20 steps; then `deft explain deft-traces`

    if deft.trying("compile"):            # in the one run of `deft optimize --try compile`
        model.compile()

    start_timeline("timeline.json")       # Horovod's way
    ...
    stop_timeline()                       # for chrome://tracing or ui.perfetto.dev

All ranks may call them. Rank 0 alone acts, because its daemon leads the job and tells the others.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import time
from pathlib import Path

from deft import world
from deft._native import call, lib, option

log = logging.getLogger("deft")

_FINISHED_S = 10.0  # in which the daemons finish their files
_LOOK_S = 0.1
_timeline: "Path | None" = None  # the file that stop_timeline() writes


def trace(folder: "str | os.PathLike[str]" = "deft-traces", steps: int = 20) -> None:
    """Traces the next `steps` steps, or with 0 all to the end of the job. Each daemon writes a file into `folder`,
    which is relative to the working directory of rank 0.

    DeftError if a trace is being written already, or if rank 0's daemon cannot write there."""
    if steps < 0:
        raise ValueError(f"steps is {steps}; give a number of steps, or 0 for all")
    session = world.session()
    if world.rank() == 0:
        call(lib.deft_trace_start, session.handle(), os.path.abspath(folder).encode(), steps)


def trying(change: str) -> bool:
    """Whether `deft optimize --try` measures `change` in this run. Then the script is to make it."""
    if os.environ.get("DEFT_TRY") != change:
        return False
    folder = option("trace")
    if folder:
        with contextlib.suppress(OSError):  # another machine's folder; `deft optimize` looks into its own
            Path(folder, f"tried-{change}").touch()
    return True


def start_timeline(file_path: "str | os.PathLike[str]", mark_cycles: bool = False) -> None:
    """Traces the job until stop_timeline(), which writes `file_path`. Deft has no cycles that it could mark."""
    global _timeline
    session = world.session()
    if world.rank() != 0:
        return
    path = Path(file_path).absolute()
    if option("trace"):
        log.info("start_timeline(%r): DEFT_TRACE traces the job already, into %s", str(path), option("trace"))
    else:
        call(lib.deft_trace_start, session.handle(), bytes(_traces_of(path)), 0)
    _timeline = path


def stop_timeline() -> None:
    """Ends what start_timeline() began, and writes its file from all traces that this node can read."""
    global _timeline
    session = world.session()
    if world.rank() != 0:
        return
    path, _timeline = _timeline, None
    if path is None:
        raise ValueError("stop_timeline() ends what start_timeline() began; no timeline was started")
    if option("trace"):
        log.info("stop_timeline(): DEFT_TRACE traces the job to its end; then `deft trace merge` makes a timeline")
        return
    try:
        call(lib.deft_trace_stop, session.handle())
    finally:  # a trace that has ended otherwise is on the disk all the same
        _write_timeline(_traces_of(path), path)


def _traces_of(timeline: Path) -> Path:
    """The folder into which the daemons write the traces of a timeline."""
    return timeline.with_name(timeline.name + ".traces")


def _write_timeline(traces: Path, timeline: Path) -> None:
    tool = _tool()
    if tool is None:
        log.warning("there is no program deft on PATH; make the timeline by: deft trace merge --chrome %s", traces)
        return
    command = [tool, "trace", "merge", str(traces), "--chrome", "-o", str(timeline)]
    deadline = time.monotonic() + _FINISHED_S
    while True:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "was not finished" not in done.stderr or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    if done.returncode != 0:
        log.warning("the timeline was not written: %s", done.stderr.strip())
    elif done.stderr:
        log.warning("the timeline %s is not complete: %s", timeline, done.stderr.strip())


def _tool() -> "str | None":
    """The program `deft`: of the wheel, of the tree that this package was built in, or on PATH."""
    package = Path(__file__).absolute().parent
    near = [package / "bin/deft", package.parents[1] / "bin/deft", package.parents[3] / "bin/deft"]
    return next((str(path) for path in near if os.access(path, os.X_OK)), shutil.which("deft"))
