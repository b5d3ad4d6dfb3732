"""One test of Horovod, run on one rank."""

import importlib.util
import os
import sys
import unittest
from pathlib import Path

import horovod_shim


def run_case(framework, path, class_name, method):
    """(passed, failed or skipped; why)."""
    for name in ("RANK", "SIZE"):  # so the tests take this for a job of Horovod's own launcher
        os.environ[f"HOROVOD_{name}"] = os.environ["DEFT_RANK" if name == "RANK" else "DEFT_WORLD_SIZE"]
    horovod_shim.install(framework)
    try:
        test = getattr(_load(path), class_name)(method)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    skipped = _marked(getattr(test, method))
    if skipped is not None:
        return "skipped", skipped
    result = unittest.TestResult()
    test.run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    problems = [text for _, text in result.errors + result.failures]
    return ("failed", _short(problems[0])) if problems else ("passed", "")


def _load(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _marked(function):
    """The reason of a mark of pytest to skip, which unittest does not know."""
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "skip" or (mark.name == "skipif" and any(mark.args)):
            return mark.kwargs.get("reason", "marked")
    return None


def _short(trace):
    """The last line that names an error."""
    lines = [line for line in trace.strip().splitlines() if line and not line.startswith(" ")]
    return lines[-1][:300] if lines else trace.strip()[-300:]
