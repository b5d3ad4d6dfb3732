"""The program `deft` of a build, as the benchmarks ask it.

replayed = ask(build / "bin/deft", "replay", folder, "--policy", "fifo")   # what --json prints
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path


class DeftFailed(RuntimeError):
    """A command of `deft` ended with an error, or did not end in time; the text has the command and what it said."""


def printed(program: Path, *words: str | Path, timeout_s: float | None = None) -> str:
    """What `deft WORDS` prints."""
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise DeftFailed(f"deft {words[0]}: no answer within {timeout_s:g} s") from None
    if done.returncode:
        said = done.stderr.strip() or f"it ended with {done.returncode} and said nothing"
        raise DeftFailed(f"deft {words[0]}: {said}")
    return done.stdout


def ask(program: Path, *words: str | Path):
    """What `deft WORDS --json` prints, parsed."""
    return json.loads(printed(program, *words, "--json"))


def options(program: Path) -> dict[str, dict]:
    """Deft's table of options, by name."""
    return {option["name"]: option for option in ask(program, "options")}
