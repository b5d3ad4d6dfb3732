"""A process that an agent started: a worker (with a rank) or the daemon (without)."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
from collections.abc import Callable

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
        self.outputs = [wire.TextLines(self.process.stdout.fileno()), wire.TextLines(self.process.stderr.fileno())]
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


def ask(
    words: list[str], environment: dict[str, str], orders: wire.Lines, hear: Callable[[], bool]
) -> tuple[int, bytes, str]:
    """Status, output and complaints of a program. It is killed when `hear` finds that `orders` end the run."""
    with (
        subprocess.Popen(
            words,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=begin_child,  # noqa: PLW1509 - an agent has one thread
        ) as asked,
        selectors.DefaultSelector() as waiting,
    ):
        said = {asked.stdout: b"", asked.stderr: b""}
        for source in (orders, *said):
            waiting.register(source, selectors.EVENT_READ)
        try:
            ends = hear()
            while len(waiting.get_map()) > 1 and not ends:
                ends = read_what_came(waiting, said, orders, hear)
        finally:
            if len(waiting.get_map()) > 1:
                asked.kill()
    return asked.returncode, said[asked.stdout], said[asked.stderr].decode(errors="replace")


def read_what_came(waiting: selectors.BaseSelector, said: dict, orders: wire.Lines, hear: Callable[[], bool]) -> bool:
    """True: the run ends."""
    for key, _ in waiting.select():
        if key.fileobj is orders:
            if hear():
                return True
            continue
        piece = os.read(key.fd, wire.PIECE_BYTES)
        said[key.fileobj] += piece
        if not piece:
            waiting.unregister(key.fileobj)
    return False
