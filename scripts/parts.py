"""The parts of Deft that a machine may lack, and the parts that a run requires.

A file such as .ci/parts lists what must be there, and which skips are right:

    part NAME            a name of PARTS; it fails the run if the machine has not got it
    skip REGEX           a test may skip if its line `suite name: reason` matches; every other skip fails the run

Without such a file a missing part only skips tests, each with its reason.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def program(name: str) -> Callable[[], bool]:
    return lambda: shutil.which(name) is not None


def built(path: str) -> Callable[[], bool]:
    return (ROOT / "build" / path).exists


def module(name: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(name) is not None


def has_link(name: str) -> Callable[[], bool]:
    """Whether `deft check-build` ticks this link."""

    def ask() -> bool:
        deft = ROOT / "build/bin/deft"
        if not deft.exists():
            return False
        done = subprocess.run([deft, "check-build"], capture_output=True, text=True)
        return re.search(rf"^\s*\[X\] {name}\b", done.stdout, re.MULTILINE) is not None

    return ask


def namespaces() -> bool:
    return shutil.which("unshare") is not None and (
        subprocess.run(["unshare", "-Urnm", "ip", "link"], capture_output=True).returncode == 0
    )


PARTS: dict[str, Callable[[], bool]] = {
    "gloo": has_link("gloo"),
    "ps": has_link("ps"),
    "mpi": has_link("mpi"),
    "chromium": program("chromium"),
    "mpirun": program("mpirun"),
    "nccl": has_link("nccl"),
    "nccl-fakes": built("tests/fakes/libnccl.so.2"),
    "namespaces": namespaces,
    "torch": module("torch"),
    "accelerate": module("accelerate"),
    "transformers": module("transformers"),
    "lightning": module("lightning"),
    "tensorflow": (ROOT / ".venv-tensorflow/bin/python").exists,
    "mxnet": (ROOT / ".venv-mxnet/bin/python").exists,
    "matplotlib": module("matplotlib"),
    "clang-format": program("clang-format-14"),
    "clang-tidy": program("clang-tidy-14"),
    "fuzz": program("clang++-14"),
    "ctags": program("ctags"),
    "shellcheck": program("shellcheck"),
}


@dataclass
class Required:
    parts: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)

    def missing(self) -> list[str]:
        """A line for each required part that is not there."""
        return [f"part {name}: CI requires it, and it is missing here" for name in self.parts if not PARTS[name]()]

    def wrong_skips(self, skipped: list[str]) -> list[str]:
        """The skips that no line of the file allows."""
        return [line for line in skipped if not any(re.search(skip, line) for skip in self.skips)]


def read(file: Path) -> Required:
    required = Required()
    for number, line in enumerate(file.read_text().splitlines(), 1):
        word, _, rest = line.strip().partition(" ")
        if not word or word.startswith("#"):
            continue
        if word == "part" and rest in PARTS:
            required.parts.append(rest)
        elif word == "skip" and rest:
            required.skips.append(rest.strip())
        else:
            raise ValueError(f"{file}:{number}: '{line}' is neither `part NAME` nor `skip REGEX`: {' '.join(PARTS)}")
    return required
