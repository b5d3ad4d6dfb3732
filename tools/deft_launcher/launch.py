"""The launcher: one agent a node, their output, the first failure, signals, and a clean end."""

from __future__ import annotations

import os
import re
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
LEAVE_SECONDS = 12  # what an agent needs beyond the grace to go
WRITING_SECONDS = 20  # and its daemon may need more to finish traces
KILL_SECONDS = 5  # what an agent needs to kill all that it started
SLURM_STEP = re.compile(r"slurm-\d+\.\d+")  # deploy/slurm-task-prolog names so what may start several runs
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def working_folder() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the working directory is gone ({error.strerror}): cd to one that exists") from None


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

    @property
    def is_shared(self) -> bool:
        """It uses a daemon that ran before. Known once that daemon listens."""
        return not self.folder

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

    def kill(self) -> None:
        """Agent and keeper (keeper.py), or ssh. The children of the agent die with it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def put_away(self) -> None:
        try:
            self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
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
        options, given = dict(self.run_.options), self.run_.given
        own_name = f"run-{os.getpid()}-{secrets.token_hex(4)}"
        if "job" not in given:
            options["job"] = own_name
        elif "job" not in options and SLURM_STEP.fullmatch(given["job"]):
            options["job"] = f"{given['job']}.{own_name}"
        if "job_token" not in given:
            options["job_token"] = secrets.token_hex(16)
        if "links" not in given and all(node.local for node in self.run_.nodes):
            options["links"] = "gloo:lo"
        return options

    def plan(self, node: Node, options: dict[str, str]) -> dict:
        run = self.run_
        elsewhere = hosts.on_other_machines(node, run.nodes)
        return {
            "command": run.command,
            "options": options,
            "environment": {} if node.local else run.forwarded,
            "folder": working_folder(),
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

    def make_key(self) -> str:
        """The key of this run's daemons, if they listen where other machines reach them and the user gave none."""
        if all(node.local for node in self.run_.nodes):
            return ""
        if self.run_.given.get("secret_file") or self.run_.given.get("insecure") == "on":
            return ""
        made = subprocess.run([arguments.program("deft"), "keygen"], capture_output=True, text=True)
        if made.returncode != 0:
            raise UsageError(f"cannot make a key for the daemons of this run: {made.stderr.strip()}")
        return made.stdout.strip()

    def start_agents(self) -> None:
        options = self.options()
        self.key = self.make_key()
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
        if obstacle := self.why_daemons_cannot_meet():
            self.failures.append(Failure(0, obstacle, 1, []))
            return
        for remote in self.remotes:
            remote.send("start", leader=self.remotes[0].listen, meeting=self.remotes[0].meeting)

    def why_daemons_cannot_meet(self) -> str:
        """Empty: they can, as far as the launcher knows."""
        first = self.remotes[0]
        here_only = first.listen.startswith(("127.", "localhost"))
        if first.is_shared and here_only and hosts.on_other_machines(first.node, self.run_.nodes):
            return (
                f"the deftd of {first.name} listens on {first.listen}, where other hosts cannot reach it: restart it "
                "with --listen=ADDRESS:PORT"
            )
        shared = [remote.name for remote in self.remotes if remote.is_shared]
        own = [remote.name for remote in self.remotes if not remote.is_shared]
        if self.key and shared and own:
            return (
                f"a deftd runs on {', '.join(shared)}, and none that takes jobs on {', '.join(own)}: daemons of one "
                "run need one key, and this run's own deftd would have another. Start deftd on all hosts, name its "
                "key (--secret-file), or name a socket where none listens (--socket)"
            )
        return ""

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
            self.say_what_is_not_used(remote)
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

    def say_what_is_not_used(self, remote: Remote) -> None:
        unused = sorted(self.run_.options.keys() & self.run_.of_daemons)
        if remote.is_shared and unused:
            flags = ", ".join("--" + name.replace("_", "-") for name in unused)
            what = f"deftrun: {remote.name}: a deftd runs there, and has its own settings: {flags} changes nothing"
            self.show(sys.stderr, what)

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
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started by nohup: the run outlives its terminal
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


def open_closed_streams() -> None:
    """Whoever starts us may have closed them; what is written there is lost then."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def main(words: list[str]) -> int:
    open_closed_streams()
    sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: workers may write what this locale has not
    try:
        run = arguments.parse(words)
        return Launcher(run).run() if run else 0
    except UsageError as error:
        print(f"deftrun: {error} (see deftrun --help)", file=sys.stderr)
        return 2
