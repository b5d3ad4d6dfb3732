"""One line that says where a long run is: redrawn on a terminal, one line an event elsewhere."""

from __future__ import annotations

import shutil
import sys
import time

REDRAW_S = 0.2


class Progress:
    def __init__(self, stream=sys.stderr):
        self._stream, self._live = stream, stream.isatty()
        self._drawn_at = 0.0
        self._drawn = False

    def event(self, text: str) -> None:
        """Something that stays to be read."""
        self._clear()
        print(text, file=self._stream, flush=True)

    def stage(self, text: str) -> None:
        """Says what is being done now. On a terminal the next line takes its place."""
        self._show(text) if self._live else self.event(text)

    def tick(self, text: str) -> None:
        """How far it is; only on a terminal, a few times a second."""
        if self._live and time.monotonic() - self._drawn_at >= REDRAW_S:
            self._show(text)

    def done(self) -> None:
        self._clear()

    def _show(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\033[K" + text[:width])
        self._stream.flush()
        self._drawn, self._drawn_at = True, time.monotonic()

    def _clear(self) -> None:
        if self._drawn:
            self._stream.write("\r\033[K")
            self._stream.flush()
            self._drawn = False
