"""Forks the workers of tests, so that what they all import is imported once and not by each of them.

    python worker_server.py FD MODULE...     # a socket of forked_worker.py, which asks by a message with descriptors

Each worker runs its program as `python -c` would, in an environment of its own. When it has ended, its status goes into
the last of the descriptors. The server ends, with all workers, when the other end of its socket has gone.
"""

import contextlib
import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys

CLONE_NEWNET = 0x40000000
MOST_BYTES, MOST_DESCRIPTORS = 1 << 18, 8


class Server:
    def __init__(self, asked: socket.socket):
        self.asked = asked
        self.statuses: dict[int, int] = {}  # where each worker's goes, by its id
        self.woken, waker = os.pipe()
        for end in (self.woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> str:
        """Gives the program in each worker, and does not return in the server."""
        while True:
            select.select([self.asked, self.woken], [], [])
            with contextlib.suppress(BlockingIOError):
                os.read(self.woken, 512)
            self.tell_who_has_ended()
            if not select.select([self.asked], [], [], 0)[0]:
                continue
            message, descriptors, _, _ = socket.recv_fds(self.asked, MOST_BYTES, MOST_DESCRIPTORS)
            if not message:
                self.end()
            pid = os.fork()
            if pid == 0:
                return self.become(json.loads(message), descriptors[:-1])
            self.statuses[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            self.asked.send(str(pid).encode())

    def tell_who_has_ended(self) -> None:
        while self.statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with contextlib.suppress(BrokenPipeError):
                os.write(self.statuses[pid], str(os.waitstatus_to_exitcode(status)).encode())
            os.close(self.statuses.pop(pid))

    def end(self) -> None:
        for pid in self.statuses:
            os.kill(pid, signal.SIGKILL)
        sys.exit()

    def become(self, asked: dict, descriptors: list[int]) -> str:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        given = [os.open(os.devnull, os.O_RDONLY), *descriptors[:2]]
        for number, descriptor in enumerate(given):
            os.dup2(descriptor, number)
        self.asked.detach()
        kept = descriptors[2:]
        for descriptor in os.listdir("/proc/self/fd"):
            if int(descriptor) > 2 and int(descriptor) not in kept:
                with contextlib.suppress(OSError):
                    os.close(int(descriptor))
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        if kept:
            os.environ["GATE"] = ",".join(map(str, kept))
        enter(asked["place"])
        sys.argv, sys.path[0] = ["-c"], ""
        sys.path[1:1] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return asked["program"]


def enter(place: dict) -> None:
    """Goes to a node of the lab: to its cores, and into its network."""
    if "cores" in place:
        os.sched_setaffinity(0, place["cores"])
    if "network" in place:
        with open(place["network"]) as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the network {place['network']}")


for module in sys.argv[2:]:
    importlib.import_module(module)
program = Server(socket.socket(fileno=int(sys.argv[1]))).serve()
exec(compile(program, "<worker>", "exec"), {"__name__": "__main__"})
