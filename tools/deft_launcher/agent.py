"""A node's agent: starts its daemon and its workers, reports what becomes of them, and leaves nothing behind.

It speaks the lines of wire.py on its standard input and output, so it works alike as a child and behind ssh. When its
input ends, for whatever reason, it ends all that it started.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

from deft_launcher import arguments, keeper, strays, wire
from deft_launcher.child import Child, ask

PORT_TRIES = 5
DAEMON_GRACE = 5.0  # in which a daemon ends with the last job; then it is told a second time, and ends all
WRITING_GRACE = 20.0  # in which it finishes the files of traces then: the disk may be busy
WATCH_SECONDS = 0.05
ANSWER_SHARE = 0.75  # of the time to start, in which a daemon that listens must answer
LONGEST_SOCKET = 107  # sockaddr_un has 108 bytes, of which the last one is 0
EVERYWHERE = ("0.0.0.0", "*")  # no address that others could name
NO_ANSWER = 3  # the exit status of `deft status` then


def free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]


def reserved_port() -> socket.socket:
    """Bound, so that nobody else is given its port. A server that sets SO_REUSEADDR may listen there meanwhile."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def own_address(peer: str) -> str:
    """This machine's address on the way to `peer`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return probe.getsockname()[0]


def reachable_address(plan: dict) -> str:
    """Where other nodes reach this one: its address on the way to one of them, or else the one that ssh came to."""
    if plan["address"]:
        return plan["address"]
    failures = []
    for peer in plan["peers"]:
        try:
            return own_address(peer)
        except OSError as error:
            failures.append(f"{peer}: {error.strerror}")
    ssh_came_to = os.environ.get("SSH_CONNECTION", "").split()[2:3]
    if plan["over_ssh"] and ssh_came_to and ":" not in ssh_came_to[0]:
        return ssh_came_to[0]
    why = "; ".join(failures) or "ssh does not tell it"
    raise RuntimeError(
        f"cannot find the address at which other nodes reach this one ({why}): name the hosts by IPv4 addresses, or by "
        "names that every node can resolve"
    )


def reachable_place(listen: str, plan: dict) -> str:
    """Where other nodes reach a daemon that listens there."""
    host, _, port = listen.rpartition(":")
    return f"{reachable_address(plan)}:{port}" if host in EVERYWHERE else listen


def for_torch(meeting: str, rank: int, world: int, local: int, local_size: int) -> dict[str, str]:
    """What torchrun sets, so that a script of torch.distributed runs as it is."""
    host, _, port = meeting.rpartition(":")
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": host.strip("[]"),
        "MASTER_PORT": port,
    }


def add_package(environment: dict[str, str]) -> None:
    here = Path(__file__).resolve().parents[1]
    for folder in (here / "python", here.parents[1] / "python", here.parent / "build" / "python"):
        if (folder / "deft" / "__init__.py").exists():
            old = environment.get("PYTHONPATH", "")
            environment["PYTHONPATH"] = f"{folder}:{old}" if old else str(folder)
            return


class Agent:
    def __init__(self) -> None:
        self.input = wire.Lines(0)
        self.orders: list[bytes] = []  # heard, and not done yet
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.input, selectors.EVENT_READ, None)
        self.workers: list[Child] = []
        self.daemon: Child | None = None
        self.folder: Path | None = None
        self.plan: dict = {}
        self.socket = ""
        self.going = False  # the end has begun
        self.at_once = False  # and nothing is waited for any more
        self.asked = False  # a signal has told the workers to end, and they may be saving what they have
        self.meeting = reserved_port()  # where torch.distributed's rank 0 may listen, if it runs here

    def report(self, event: str, **fields) -> None:
        data = wire.encode({"event": event, **fields})
        try:
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            self.going = True  # nobody listens any more

    def report_ready(self, listen: str, **fields) -> None:
        self.report("ready", listen=listen, meeting_port=self.meeting.getsockname()[1], **fields)

    # --- the daemon

    def environment(self, **more: str) -> dict[str, str]:
        result = {**os.environ, **self.plan["environment"]}
        result.update({"DEFT_" + name.upper(): value for name, value in self.plan["options"].items()})
        result.update(more)
        return result

    def running_daemon(self) -> dict | None:
        """The status of the daemon that takes jobs on this node's socket. One that is slow is not taken for none."""
        if self.plan["private"]:
            return None
        patience = f"{ANSWER_SHARE * self.plan['start_timeout']:g}s"
        words = [arguments.program("deft"), "status", "--json", "--wait", patience]
        code, output, complaint = ask(words, self.environment(), self.input, self.hear)
        if code == NO_ANSWER:
            raise RuntimeError(
                f"a deftd runs here and has not answered for {patience}: {complaint.strip()}. It is busy or hangs: "
                "try again, restart it, or name a socket where none listens (--socket), and this run gets its own"
            )
        status = json.loads(output) if code == 0 else None
        return status if status and status["takes_jobs"] else None  # one that drains would refuse this job

    def prepare(self, plan: dict) -> None:
        self.plan = plan
        folder = plan.get("folder")
        if folder and Path(folder).is_dir():
            os.chdir(folder)
        status = self.running_daemon()
        if self.going:
            return
        if status is not None:
            self.socket = status["socket"]
            self.report_ready(reachable_place(status["listen"], plan), private=False)
            return
        self.folder = Path(tempfile.mkdtemp(prefix="deftrun-"))
        self.report("folder", folder=str(self.folder))
        self.socket = str(self.folder / "deftd.sock")
        if len(os.fsencode(self.socket)) > LONGEST_SOCKET:
            raise RuntimeError(
                f"the path of the daemon's socket, {self.socket}, is longer than the {LONGEST_SOCKET} bytes that the "
                "kernel allows: set TMPDIR to a folder with a shorter path, for instance /tmp"
            )
        address = reachable_address(plan)
        for attempt in range(1, PORT_TRIES + 1):
            listen = f"{address}:{free_port(address)}"
            if self.start_daemon(listen):
                self.report_ready(listen, private=True)
                return
            if self.going:
                return
            taken = any("in use" in line for line in self.daemon.tail)
            if not taken or attempt == PORT_TRIES:
                status = self.daemon.process.wait()
                raise RuntimeError(f"deftd {wire.exit_text(status)}: " + " | ".join(self.daemon.tail[-3:]))

    def keep(self, key: str) -> Path:
        """In this run's folder, which nobody else may enter."""
        path = self.folder / "key"
        path.write_text(key + "\n")
        path.chmod(0o600)
        return path

    def start_daemon(self, listen: str) -> bool:
        """True once it says that it is usable; False when it ended instead, or the run ends."""
        ready, ready_end = os.pipe()
        words = [arguments.program("deftd"), f"--socket={self.socket}", f"--listen={listen}", f"--ready-fd={ready_end}"]
        if self.plan.get("key"):
            words.append(f"--secret-file={self.keep(self.plan['key'])}")
        self.daemon = Child(words, self.environment(), None, pass_fds=(ready_end,))
        os.close(ready_end)
        usable = self.becomes_usable(ready)
        os.close(ready)
        if usable:
            self.watch(self.daemon)
        elif self.daemon.process.poll() is not None:
            for output in self.daemon.outputs:
                self.pass_on(self.daemon, output)
        elif not self.going:
            raise RuntimeError(f"deftd was not usable within {self.plan['start_timeout']:.0f} s")
        return usable

    def becomes_usable(self, ready: int) -> bool:
        """Waits for the word that it is; no longer than it lives, and the launcher wants it."""
        deadline = time.monotonic() + self.plan["start_timeout"]
        self.hear()
        with selectors.DefaultSelector() as waiting:
            for source in (ready, self.input, *self.daemon.outputs):
                waiting.register(source, selectors.EVENT_READ)
            while not self.going and time.monotonic() < deadline:
                for key, _ in waiting.select(0.2):
                    if key.fileobj == ready:
                        if os.read(ready, 1) != b"":
                            return True
                        waiting.unregister(ready)
                    elif key.fileobj is self.input:
                        self.hear()
                    else:
                        self.pass_on(self.daemon, key.fileobj)
                        if key.fileobj.closed:
                            waiting.unregister(key.fileobj)
                if self.daemon.process.poll() is not None:
                    break
        return False

    # --- the workers

    def start(self, leader: str, meeting: str) -> None:
        first, count = self.plan["first_rank"], self.plan["workers"]
        for local in range(count):
            environment = self.environment(
                DEFT_RANK=str(first + local),
                DEFT_WORLD_SIZE=str(self.plan["world"]),
                DEFT_LOCAL_RANK=str(local),
                DEFT_LOCAL_SIZE=str(count),
                DEFT_SOCKET=self.socket,
                DEFT_LEADER=leader,
                **for_torch(meeting, first + local, self.plan["world"], local, count),
            )
            environment.setdefault("PYTHONUNBUFFERED", "1")
            share = max(1, (os.cpu_count() or 1) // self.plan["workers_on_machine"])
            environment.setdefault("OMP_NUM_THREADS", str(share))
            add_package(environment)
            try:
                worker = Child(self.plan["command"], environment, first + local)
            except OSError as error:
                raise RuntimeError(f"cannot run {self.plan['command'][0]}: {error.strerror}") from None
            self.workers.append(worker)
            self.watch(worker)

    # --- what happens

    def children(self) -> list[Child]:
        return [*self.workers, *([self.daemon] if self.daemon else [])]

    def watch(self, child: Child) -> None:
        for output in child.outputs:
            if not output.closed:
                self.selector.register(output, selectors.EVENT_READ, child)

    def pass_on(self, child: Child, output: wire.Lines) -> None:
        for text in child.read(output):
            if child.rank is None:
                self.report("log", text=text)
            else:
                self.report("output", rank=child.rank, error=output is child.outputs[1], text=text)

    def reap(self) -> None:
        """Reports the children that ended, after all that they wrote."""
        children = self.children()
        for child in children:
            if child.reported or child.process.poll() is None:
                continue
            for output in child.outputs:
                self.pass_on(child, output)
            child.reported = True
            status = child.process.returncode
            if child.rank is not None:
                self.report("exit", rank=child.rank, status=status, tail=child.tail)
            elif not self.going:
                self.report("failed", what=f"its deftd {wire.exit_text(status)}", tail=child.tail)
        strays.bury(children)

    def handle(self, message: dict) -> None:
        action = message.get("do")
        if action == "prepare":
            self.prepare(message)
        elif action == "start":
            self.start(message["leader"], message["meeting"])
        elif action == "signal":
            self.asked = self.asked or message["number"] in wire.ENDING
            for worker in self.workers:
                worker.send(message["number"])
        elif action == "stop":
            self.going = True
        elif action == "kill":
            self.going = self.at_once = True

    def hear(self) -> bool:
        """Does what the launcher says. The end of its words is the end of the run. True: the run ends."""
        self.orders += self.input.read()
        while self.orders:
            self.handle(wire.decode(self.orders.pop(0)))  # may take long, and hear more meanwhile
        if self.input.closed:
            self.going = True
        return self.going

    def run(self) -> None:
        while not self.going:
            for key, _ in self.selector.select(WATCH_SECONDS):
                if key.data is not None:
                    self.pass_on(key.data, key.fileobj)
                    if key.fileobj.closed:
                        self.selector.unregister(key.fileobj)
                else:
                    self.hear()
            self.reap()

    def end(self) -> None:
        """Ends the workers, what they left behind, and the daemon: asks, waits, kills. Then removes the folder."""
        grace = float(self.plan.get("grace", DAEMON_GRACE))
        if self.asked:
            self.wait_for(self.workers, grace)
            grace = 0.0
        self.end_children(self.workers, grace)
        strays.end(self.children(), lambda: self.hear() and self.at_once)
        if self.daemon:
            self.end_children([self.daemon], DAEMON_GRACE, WRITING_GRACE)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def end_children(self, children: list[Child], *graces: float) -> None:
        """Asks them once for each grace, and kills what is left after the last one."""
        for grace in graces:
            self.ask_to_end(children, grace)
        for child in children:
            child.send(signal.SIGKILL)  # also what a worker that has ended left behind
            child.process.wait()
        self.reap()

    def ask_to_end(self, children: list[Child], grace: float) -> None:
        for child in children:
            child.send(signal.SIGTERM)
        self.wait_for(children, grace)

    def wait_for(self, children: list[Child], grace: float) -> None:
        deadline = time.monotonic() + grace
        while any(child.process.poll() is None for child in children) and time.monotonic() < deadline:
            self.hear()
            if self.at_once:
                return
            for child in children:
                for output in child.outputs:
                    self.pass_on(child, output)
            time.sleep(0.02)


def main() -> int:
    if (status := keeper.part_from_keeper()) is not None:
        return status
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    agent = Agent()
    strays.adopt()
    try:
        agent.run()
    except Exception as error:
        agent.report("failed", what=str(error) or repr(error), tail=[])
        agent.going = True
    finally:
        agent.end()
    return 0
