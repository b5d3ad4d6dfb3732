"""The programs of bench/ start with the system's python3. What that lacks is in this checkout's .venv, which
scripts/setup makes."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / ".venv/bin/python"


def use_for(module: str) -> None:
    """Runs this program anew by .venv's Python, if the one that runs it lacks `module`. Called before its import."""
    lacks = importlib.util.find_spec(module) is None
    if lacks and PROGRAM.exists() and Path(sys.prefix) != PROGRAM.parents[1]:
        os.execv(PROGRAM, [str(PROGRAM), *sys.argv])
