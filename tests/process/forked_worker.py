"""A worker of a test, forked from a process that has imported what such workers need (worker_server.py).

    worker = ForkedWorker("print('here')", environment)
    worker.stdout.readline()
    worker = start_script(["train.py", "--steps", "3"], environment, ("torch",))     # errors go where the output goes

It has what tests use of subprocess.Popen with pipes of text. It is no child of the tests: the server tells its status.
"""

import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from under_test import BUILD, sanitizer_environment

SERVER = Path(__file__).with_name("worker_server.py")
MODULES = ("numpy", "deft")


@functools.cache
def worker_server(modules: tuple[str, ...]) -> socket.socket:
    """It is there for as long as this process is: then the socket closes."""
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # read when numpy and torch are imported
    environment = os.environ | sanitizer_environment() | one_thread | {"PYTHONPATH": str(BUILD / "python")}
    with its:
        command = [sys.executable, SERVER, str(its.fileno()), *modules]
        subprocess.Popen(command, env=environment, pass_fds=[its.fileno()])
    return own


class ForkedWorker:
    def __init__(
        self,
        program: str,
        environment: dict[str, str],
        gate: tuple[int, ...] = (),
        merged: bool = False,
        modules: tuple[str, ...] = MODULES,
        place: dict | None = None,
    ):
        """`merged`: errors go where the output goes. `modules`: imported before the fork. `place`: of `enter` there."""
        server = worker_server(modules)
        self.returncode: int | None = None
        self.texts: list[Future] = []
        (out, its_out), (err, its_err), (self.status, its_status) = (os.pipe() for _ in range(3))
        self.stdout, self.stderr = os.fdopen(out), os.fdopen(err)
        asked = {"program": program, "environment": environment, "folder": os.getcwd(), "place": place or {}}
        ends = [its_out, its_out if merged else its_err, *gate, its_status]
        socket.send_fds(server, [json.dumps(asked).encode()], ends)
        self.pid = int(server.recv(64))
        for end in (its_out, its_err, its_status):
            os.close(end)

    def poll(self) -> int | None:
        return self.await_status(0)

    def await_status(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self.status], [], [], seconds)[0]:
            self.returncode = int(os.read(self.status, 64) or -signal.SIGKILL)  # nothing: the server was killed
            os.close(self.status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.await_status(timeout) is None:
            raise subprocess.TimeoutExpired("a worker", timeout)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        until = None if timeout is None else time.monotonic() + timeout
        if not self.texts:
            readers = ThreadPoolExecutor(2)
            self.texts = [readers.submit(stream.read) for stream in (self.stdout, self.stderr)]
            readers.shutdown(wait=False)
        if wait(self.texts, timeout).not_done:
            raise subprocess.TimeoutExpired("a worker", timeout)
        self.wait(None if until is None else max(until - time.monotonic(), 0))
        return self.texts[0].result(), self.texts[1].result()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def start_script(words: list[str], environment: dict[str, str], modules: tuple[str, ...] = MODULES) -> ForkedWorker:
    """Begins and ends as `python WORDS`; `words` are a script and its arguments."""
    begin = f"import runpy, sys; sys.argv, sys.path[0] = {words!r}, {str(Path(words[0]).parent)!r}"
    run = f"{begin}; runpy.run_path({words[0]!r}, run_name='__main__')"
    return ForkedWorker(run, environment, merged=True, modules=modules)


def finish(workers: list[subprocess.Popen | ForkedWorker], seconds: float = 120) -> list[tuple[int, str]]:
    """The status and the output of each. None of them is left, whatever happens."""
    results = []
    try:
        for worker in workers:
            output, _ = worker.communicate(timeout=seconds)
            results.append((worker.returncode, output))
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                worker.kill()
            worker.wait()
    return results
