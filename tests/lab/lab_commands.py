"""Runs bench/compare as a user does, and looks at what it leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPARE = str(ROOT / "bench" / "compare")


def run_compare(*argv, prefix=(), timeout=550, **popen):
    """bench/compare to its end, with the interpreter that runs the tests."""
    command = [*prefix, sys.executable, COMPARE, *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, **popen)


def processes_with(text):
    """The ids of all processes whose environment holds `text`."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if text.encode() in environment:
            found.append(int(entry))
    return found
