"""Runs deftrun, for tests of it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port
from under_test import BUILD

ROOT = Path(__file__).resolve().parents[2]
BIN = BUILD / "bin"
SHOW = 'echo "r=$DEFT_RANK w=$DEFT_WORLD_SIZE lr=$DEFT_LOCAL_RANK ls=$DEFT_LOCAL_SIZE s=$DEFT_SOCKET l=$DEFT_LEADER"'


@pytest.fixture(autouse=True)
def own_temp(tmp_path, monkeypatch):
    """Every run has a temporary folder of its own, which must be empty afterwards."""
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("DEFT_SOCKET", str(tmp_path / "none.sock"))  # no daemon of this machine is used by chance
    yield folder
    assert list(folder.iterdir()) == []
    assert processes_naming(str(folder)) == []


def processes_naming(text: str) -> list[str]:
    """Command lines of live processes that name `text`, and of those in whose environment it stands."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in words:
            found.append(words.replace(b"\0", b" ").decode())
    return found


def deftrun(*words: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, BIN / "deftrun", *words], capture_output=True, text=True, timeout=240, **options
    )


def begin_with_own_signals() -> None:
    """Whoever starts the tests in the background or by nohup has signals ignored, and deftrun would go on ignoring
    them."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(*words: str, program: Path = BIN / "deftrun", **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, program, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **{"preexec_fn": begin_with_own_signals, **options},
    )


@contextmanager
def shared_daemon(path: Path):
    """A deftd that runs before deftrun does, and its place."""
    place = f"127.0.0.1:{free_port()}"
    words = [BIN / "deftd", f"--socket={path}", f"--listen={place}", "--links=gloo:lo", "--ready-fd=1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
        try:
            assert daemon.stdout.readline() == "ready\n"
            yield place
            assert daemon.poll() is None
        finally:
            daemon.kill()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition, seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def rows(result: subprocess.CompletedProcess) -> list[dict[str, str]]:
    found = [dict(item.split("=", 1) for item in line.split()[1:]) for line in result.stdout.splitlines()]
    return sorted(found, key=lambda row: int(row["r"]))


def last_block(result: subprocess.CompletedProcess) -> str:
    return result.stderr[result.stderr.rindex("deftrun: ") :]
