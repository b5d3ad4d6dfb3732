"""For all tests in Python."""

import importlib.machinery
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LONGEST_TEST_S = 900  # of one that hangs: at a load of 50 the trainings of all frameworks have taken more than 600
sys.path.append(str(ROOT / "tests/process"))  # for cluster.py and ports.py
import under_test  # noqa: E402, F401


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A test that hangs fails by its name, and the tests after it run. Processes that it forked have no alarm."""

    def give_up(*_):
        raise TimeoutError(f"{item.nodeid} did not end within {LONGEST_TEST_S} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST_TEST_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def usual_traces() -> set[Path]:
    """The traces of failed jobs that this user's daemons keep if nobody names a folder (daemon/base/state_folder.h)."""
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    return set((Path("/var/lib") if os.geteuid() == 0 else home).glob("deft/traces/*"))


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory):
    """All that tests start keeps traces of failed jobs in a folder of the tests."""
    before = usual_traces()
    os.environ["STATE_DIRECTORY"] = str(tmp_path_factory.mktemp("state"))
    yield
    left = usual_traces() - before
    if os.environ.get("CI"):  # elsewhere they may be of somebody's own daemon
        assert not left, f"a daemon was started without STATE_DIRECTORY of the tests: {sorted(map(str, left))}"


@pytest.fixture(scope="session")
def load():
    """load("scripts/lint") gives a program of the tree as a module, with or without the ending .py."""

    def made(path: str) -> ModuleType:
        name = Path(path).with_suffix("").as_posix().replace("/", "_")  # not that of a library: bench/codecs
        loader = importlib.machinery.SourceFileLoader(name, str(ROOT / path))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
        sys.modules[name] = module  # dataclasses look it up
        loader.exec_module(module)
        return module

    return made
