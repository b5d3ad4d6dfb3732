"""The JSON lines between the launcher and its agents.

Launcher to agent (its standard input; the end of it means: stop everything and go):
    {"do": "prepare", ...}  start a daemon where none runs     {"do": "start", "leader": ...}  start the workers
    {"do": "signal", "number": N}  to the workers               {"do": "stop"}  end workers and daemon
    {"do": "kill"}  end them at once
Agent to launcher (its standard output):
    {"event": "folder", "folder": ...}  of a private daemon
    {"event": "ready", "listen": ...}  {"event": "output", "rank": R, "error": bool, "text": ...}
    {"event": "exit", "rank": R, "status": S}  {"event": "failed", "what": ...}  {"event": "log", "text": ...}
"""

from __future__ import annotations

import json
import os
import re
import signal

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # these signals end a run; workers get them, too


PIECE_BYTES = 1 << 16
PIECES = 16  # of one call: more than what a pipe holds when its last writer has gone


class Lines:
    """Cuts what a descriptor gives into lines; never blocks, however much there is."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.closed = False
        self._rest = b""
        os.set_blocking(descriptor, False)

    def fileno(self) -> int:
        return self.descriptor

    def read(self) -> list[bytes]:
        """All whole lines that have come; at the end also the last one without an end of line."""
        lines: list[bytes] = []
        for _ in range(PIECES):
            if self.closed:
                break
            try:
                piece = os.read(self.descriptor, PIECE_BYTES)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            lines += self._cut(piece)
            self.closed = not piece
        if self.closed and self._rest:
            lines.append(self._rest)
            self._rest = b""
        return lines

    def _cut(self, piece: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return whole


class TextLines(Lines):
    """What programs write for people. A progress bar ends its line by a carriage return, and some text never ends."""

    LONGEST = 1 << 16

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._returned = False  # the newest line ended by a return, whose line feed may follow

    def _cut(self, piece: bytes) -> list[bytes]:
        text = self._rest + (piece.removeprefix(b"\n") if self._returned else piece)
        self._returned = piece.endswith(b"\r")
        lines, at = [], 0
        for end in re.finditer(rb"\r?\n|\r", text):
            line, at = text[at : end.start()], end.end()
            if line or end[0] != b"\r":  # a bar begins with a return, too
                lines.append(line)
        self._rest = text[at:]
        if len(self._rest) > self.LONGEST:
            lines.append(self._rest)
            self._rest = b""
        return lines


def encode(message: dict) -> bytes:
    return json.dumps(message).encode() + b"\n"


def decode(line: bytes) -> dict:
    """A message; lines that are none (a banner of a login shell) give {}."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def exit_text(status: int) -> str:
    """What a process's return code, as subprocess gives it, means."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def shell_status(status: int) -> int:
    return 128 - status if status < 0 else status
