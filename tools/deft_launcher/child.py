"""A process that an agent started: a worker (with a rank) or the daemon (without)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess

from deft_launcher import wire

TAIL_LINES = 15
PR_SET_PDEATHSIG = 1
IGNORED_BY_AGENT = (signal.SIGINT, signal.SIGHUP)  # the launcher decides
LIBC = ctypes.CDLL(None)


def begin_child() -> None:
    """In the child: whoever kills the agent kills us, and what the agent ignores we do not."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in IGNORED_BY_AGENT:
        signal.signal(number, signal.SIG_DFL)


class Child:
    """A process with its output cut into lines."""

    def __init__(self, words: list[str], environment: dict[str, str], rank: int | None, pass_fds=()) -> None:
        self.rank = rank
        self.tail: list[str] = []
        self.process = subprocess.Popen(
            words,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=begin_child,  # noqa: PLW1509 - an agent has one thread
            pass_fds=pass_fds,
        )
        self.outputs = [wire.Lines(self.process.stdout.fileno()), wire.Lines(self.process.stderr.fileno())]
        self.reported = False

    def send(self, number: int) -> None:
        """To the process and all that it started."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def read(self, output: wire.Lines) -> list[str]:
        """The lines that have come on one of its outputs; the last ones are kept, for who asks why it failed."""
        lines = [line.decode(errors="replace") for line in output.read()]
        if self.rank is None or output is self.outputs[1]:
            self.tail = (self.tail + lines)[-TAIL_LINES:]
        return lines
