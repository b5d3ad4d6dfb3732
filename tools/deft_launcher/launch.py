"""The launcher: one agent a node, their output, the first failure, signals, and a clean end."""

from __future__ import annotations

import os
import secrets
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from deft_launcher import arguments, hosts, wire
from deft_launcher.arguments import Run
from deft_launcher.hosts import Node, UsageError

SETTLE_SECONDS = 0.2  # failures that follow from the first one may be seen before it
LEAVE_SECONDS = 8  # what an agent needs beyond the grace to go
WRITING_SECONDS = 20  # and its daemon may need more to finish traces
KILL_SECONDS = 5  # what an agent needs to kill all that it started
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


class Failure:
    """Something that ends the run. Of several, the weightiest is the cause: a daemon, then a kill, then an exit."""

    def __init__(self, weight: int, what: str, status: int, tail: list[str]) -> None:
        self.weight, self.what, self.status, self.tail = weight, what, status, tail

    def __str__(self) -> str:
        words = [line for line in self.tail if line.strip()]
        if not words:
            return f"deftrun: {self.what}"
        return "\n    ".join([f"deftrun: {self.what}; its last words:", *words])


class Remote:
    """The agent of one node, as the launcher sees it."""

    def __init__(self, node: Node, words: list[str]) -> None:
        self.node = node
        self.listen = ""
        self.meeting = ""  # where its first worker may listen
        self.folder = ""
        self.deadline = 0.0  # of its end
        self.errors: list[str] = []  # what ssh or the agent itself complained about
        self.running = set(range(node.first_rank, node.first_rank + node.workers))
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        self.events = wire.Lines(self.process.stdout.fileno())
        self.complaints = wire.Lines(self.process.stderr.fileno())

    @property
    def name(self) -> str:
        return f"node {self.node.index} ({self.node.address or self.node.host})"

    def send(self, action: str, **fields) -> None:
        try:
            self.process.stdin.write(wire.encode({"do": action, **fields}))
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it is gone, and that is seen at its output

    def take_folder(self, event: dict) -> None:
        self.folder = event.get("folder", self.folder)

    def hurry(self) -> None:
        self.send("kill")
        self.deadline = min(self.deadline, time.monotonic() + KILL_SECONDS)

    def is_awaited(self) -> bool:
        return not self.events.closed and time.monotonic() < self.deadline

    def put_away(self) -> None:
        try:
            self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()  # its children die with it
            self.process.wait()
        for line in self.events.read():  # an agent that was killed early has told its folder, and no more
            self.take_folder(wire.decode(line))
        if self.folder and self.node.local:
            shutil.rmtree(self.folder, ignore_errors=True)


class Launcher:
    def __init__(self, run: Run) -> None:
        self.run_ = run
        self.remotes: list[Remote] = []
        self.failures: list[Failure] = []
        self.signals: list[int] = []
        self.key = ""
        self.ending = False
        self.selector = selectors.DefaultSelector()

    # --- starting

    def agent_command(self, node: Node) -> list[str]:
        deftrun = str(Path(sys.argv[0]).resolve())
        if node.local:
            return [sys.executable, deftrun, "--agent"]
        seconds = max(1, int(self.run_.start_timeout))
        options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={seconds}", "-o", "ServerAliveInterval=15"]
        return ["ssh", *options, node.host, f"exec {shlex.quote(deftrun)} --agent"]

    def options(self) -> dict[str, str]:
        options = dict(self.run_.options)
        if "job" not in options and not os.environ.get("DEFT_JOB"):
            options["job"] = f"run-{os.getpid()}-{secrets.token_hex(4)}"
        if "job_token" not in options and not os.environ.get("DEFT_JOB_TOKEN"):
            options["job_token"] = secrets.token_hex(16)
        all_here = all(node.local for node in self.run_.nodes)
        if all_here and "links" not in options and not os.environ.get("DEFT_LINKS"):
            options["links"] = "gloo:lo"
        return options

    def plan(self, node: Node, options: dict[str, str]) -> dict:
        run = self.run_
        elsewhere = hosts.on_other_machines(node, run.nodes)
        return {
            "command": run.command,
            "options": options,
            "environment": {} if node.local else run.forwarded,
            "folder": os.getcwd(),
            "first_rank": node.first_rank,
            "workers": node.workers,
            "world": run.world,
            "workers_on_machine": sum(n.workers for n in run.nodes if n.host == node.host),
            "private": bool(node.address),
            "address": node.address or ("" if elsewhere else "127.0.0.1"),
            "peers": hosts.common_names(elsewhere),
            "over_ssh": not node.local,
            "key": self.key,
            "start_timeout": run.start_timeout,
            "grace": run.grace,
        }

    def make_key(self, options: dict[str, str]) -> str:
        """The key of this run's daemons, if they listen where other machines reach them and the user gave none."""
        given = {**os.environ, **{f"DEFT_{name.upper()}": value for name, value in options.items()}}
        unguarded = given.get("DEFT_INSECURE") == "on"
        if all(node.local for node in self.run_.nodes) or given.get("DEFT_SECRET_FILE") or unguarded:
            return ""
        made = subprocess.run([arguments.program("deft"), "keygen"], capture_output=True, text=True)
        if made.returncode != 0:
            raise UsageError(f"cannot make a key for the daemons of this run: {made.stderr.strip()}")
        return made.stdout.strip()

    def start_agents(self) -> None:
        options = self.options()
        self.key = self.make_key(options)
        for node in self.run_.nodes:
            try:
                remote = Remote(node, self.agent_command(node))
            except OSError as error:
                raise UsageError(f"cannot run ssh for host {node.host}: {error.strerror}") from None
            self.remotes.append(remote)
            self.selector.register(remote.events, selectors.EVENT_READ, remote)
            self.selector.register(remote.complaints, selectors.EVENT_READ, remote)
            remote.send("prepare", **self.plan(node, options))

    def wait_for_daemons(self) -> None:
        deadline = time.monotonic() + self.run_.start_timeout
        while not self.failures and any(not remote.listen for remote in self.remotes):
            if time.monotonic() > deadline:
                missing = ", ".join(remote.name for remote in self.remotes if not remote.listen)
                what = f"not ready within {self.run_.start_timeout:g} s (--start-timeout): {missing}"
                self.failures.append(Failure(0, what, 1, []))
            self.turn(0.2)

    def start_workers(self) -> None:
        leader = self.remotes[0].listen
        here_only = leader.startswith(("127.", "[::1]", "localhost"))
        if here_only and not all(remote.node.local for remote in self.remotes) and self.is_shared(self.remotes[0]):
            what = f"the deftd of {self.remotes[0].name} listens on {leader}, where other hosts cannot reach it"
            self.failures.append(Failure(0, what + ": restart it with --listen=ADDRESS:PORT", 1, []))
            return
        for remote in self.remotes:
            remote.send("start", leader=leader, meeting=self.remotes[0].meeting)

    @staticmethod
    def is_shared(remote: Remote) -> bool:
        return not remote.folder

    # --- what happens

    def turn(self, seconds: float) -> None:
        """Takes in what the agents say, and the signals that came."""
        for key, _ in self.selector.select(seconds):
            remote: Remote | None = key.data
            if remote is None:
                os.read(key.fd, 64)  # a signal's wake-up
            elif key.fileobj is remote.complaints:
                remote.errors = (remote.errors + [line.decode(errors="replace") for line in remote.complaints.read()])[
                    -8:
                ]
            else:
                for line in remote.events.read():
                    self.on_event(remote, wire.decode(line))
            if remote is not None and key.fileobj.closed:
                self.selector.unregister(key.fileobj)
                if key.fileobj is remote.events:
                    self.on_gone(remote)
        while self.signals:
            self.on_signal(self.signals.pop(0))

    def on_event(self, remote: Remote, event: dict) -> None:
        kind = event.get("event")
        remote.take_folder(event)
        if kind == "output":
            self.show(sys.stderr if event["error"] else sys.stdout, f"[{event['rank']}] {event['text']}")
        elif kind == "log":
            grave = event["text"][:1] in ("W", "E", "F") and not self.ending  # then it complains of what we do
            if self.run_.verbose or grave:
                self.show(sys.stderr, f"[deftd {remote.node.index}] {event['text']}")
        elif kind == "ready":
            remote.listen = event["listen"]
            remote.meeting = f"{remote.listen.rpartition(':')[0]}:{event['meeting_port']}"
            if self.run_.verbose:
                whose = "its own" if event["private"] else "the running"
                ranks = f"ranks {remote.node.first_rank} to {remote.node.first_rank + remote.node.workers - 1}"
                self.show(sys.stderr, f"deftrun: {remote.name}: {ranks}, {whose} deftd on {remote.listen}")
        elif kind == "exit":
            remote.running.discard(event["rank"])
            status = event["status"]
            if status != 0:
                what = f"rank {event['rank']} on {remote.name} {wire.exit_text(status)}"
                weight = 1 if status < 0 else 0
                self.failures.append(Failure(weight, what, wire.shell_status(status), event["tail"]))
        elif kind == "failed":
            self.failures.append(Failure(2, f"{remote.name}: {event['what']}", 1, event["tail"]))

    def on_gone(self, remote: Remote) -> None:
        """An agent that ends before its workers have: ssh failed, the host is lost, or someone killed it."""
        if remote.running and not self.failures:
            time.sleep(0.05)
            remote.errors += [line.decode(errors="replace") for line in remote.complaints.read()]
            self.failures.append(Failure(2, f"{remote.name} is lost: its agent ended", 1, remote.errors))

    def on_signal(self, number: int) -> None:
        if self.ending and number in wire.ENDING:
            for remote in self.remotes:
                remote.hurry()  # told a second time: at once
            return
        for remote in self.remotes:
            remote.send("signal", number=number)
        if number in wire.ENDING:
            self.failures.append(Failure(3, f"ended by {signal.Signals(number).name}", 128 + number, []))

    def show(self, stream, text: str) -> None:
        try:
            print(text, file=stream, flush=True)
        except OSError as error:
            gone = isinstance(error, BrokenPipeError)
            what = "nobody reads the output any more" if gone else f"cannot write the output: {error.strerror}"
            self.failures.append(Failure(3, what, 1, []))
            self.close(stream)

    @staticmethod
    def close(stream) -> None:
        """What is written to it from now on is lost, and no error, at the interpreter's end neither."""
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), stream.fileno())

    def run(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        self.selector.register(reader, selectors.EVENT_READ, None)
        for number in (*wire.ENDING, *PASSED_ON):
            signal.signal(number, lambda got, _: self.signals.append(got))
        try:
            self.start_agents()
            self.wait_for_daemons()
            if not self.failures:
                self.start_workers()
            while not self.failures and any(remote.running for remote in self.remotes):
                self.turn(0.5)
            settled = time.monotonic() + SETTLE_SECONDS
            while self.failures and time.monotonic() < settled:
                self.turn(0.05)
        finally:
            self.end()
        return self.conclude()

    def end(self) -> None:
        self.ending = True
        causes = len(self.failures)
        deadline = time.monotonic() + self.run_.grace + LEAVE_SECONDS
        for remote in self.remotes:
            remote.send("stop")
            remote.deadline = deadline + (WRITING_SECONDS if remote.listen else 0)  # else it has no daemon
        while any(remote.is_awaited() for remote in self.remotes):
            self.turn(0.1)
        for remote in self.remotes:
            remote.put_away()
        del self.failures[causes:]  # they follow from the end

    def conclude(self) -> int:
        if not self.failures:
            return 0
        cause = max(self.failures, key=lambda failure: failure.weight)  # the first one of the weightiest
        self.show(sys.stderr, str(cause))
        return cause.status


def main(words: list[str]) -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: workers may write what this locale has not
    try:
        run = arguments.parse(words)
        return Launcher(run).run() if run else 0
    except UsageError as error:
        print(f"deftrun: {error} (see deftrun --help)", file=sys.stderr)
        return 2
