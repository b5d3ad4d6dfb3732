"""Emulated nodes: network namespaces inside one unprivileged user namespace.

    sys.exit(netns.enter([sys.executable, *sys.argv]))  # outside: runs the same inside
    with netns.Lab(nodes=2, nics=2) as lab:             # inside
        lab.shape(["200mbit", "50mbit"])                # one rate a NIC, both ways; None: unshaped
        lab.change(1, "20mbit", node=0)                 # one NIC of one node, while it is used
        lab.start(0, ["deftd", ...])                    # a process of node 0, on node 0's cores
        lab.address(1, nic=0)                           # 10.77.0.2

NIC j of every node is a veth pair to the bridge br{j}, so each NIC is a network of its own. A token bucket sits on
both ends of each pair: what a node sends and what it receives are limited alike. Everything lives in namespaces that
end with the process that `enter` starts, so nothing stays behind, however it ends. If the system forbids it, `enter`
raises Unavailable, and Loopback stands in for Lab.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

CLONE_NEWNET = 0x40000000
INSIDE = "LAB_INSIDE"  # set in the environment of what `enter` starts
# Larger than any segment that TCP hands to a veth at once (64 KiB and the headers of its frames): a smaller bucket
# makes the kernel cut segments into single frames, which costs ten times the CPU and says nothing about a real NIC.
BURST_BYTES = 70 * 1024
QUEUE_BYTES = 1 << 20  # TCP keeps the queue at one or two segments; this only has to be enough never to drop
DOWN = "down"  # as a rate
# The share of a frame (1500 bytes and 14 of Ethernet, which tc counts) that is TCP payload.
PAYLOAD_SHARE = (1500 - 52) / 1514

_VARIANTS = (
    ["-U", "-r", "-n", "-m", "-p", "--fork", "--kill-child", "--mount-proc"],
    ["-U", "-r", "-n", "-m", "--fork", "--kill-child"],
    ["-n", "-m", "-p", "--fork", "--kill-child", "--mount-proc"],
)
_TRIAL = (
    "mount -t tmpfs tmpfs /run && mkdir /run/netns && ip netns add a && ip link add br0 type bridge && "
    "ip link add v type veth peer name eth0 netns a && ip link set v master br0 && "
    "tc -n a qdisc add dev eth0 root tbf rate 100mbit burst 70kb limit 1mb && ip netns exec a true"
)


class Unavailable(RuntimeError):
    """This system gives no emulated nodes; the text says why."""


class CommandFailed(RuntimeError):
    """ip or tc failed; the text has the command and what it said."""


def _environment() -> dict[str, str]:
    """The environment with the folders where ip and tc are, which an ordinary user's PATH lacks."""
    return {**os.environ, "PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"}


def _working_variant() -> list[str]:
    path = _environment()["PATH"]
    for program, package in (
        ("unshare", "util-linux"),
        ("ip", "iproute2"),
        ("tc", "iproute2"),
        ("taskset", "util-linux"),
    ):
        if not shutil.which(program, path=path):
            raise Unavailable(f"the program {program} is missing: install the package {package}")
    reason = ""
    for variant in _VARIANTS:
        done = subprocess.run(
            ["unshare", *variant, "sh", "-c", _TRIAL], env=_environment(), capture_output=True, text=True
        )
        if done.returncode == 0:
            return variant
        reason = reason or done.stderr.strip().replace("\n", "; ")
    raise Unavailable(f"this system forbids what emulated nodes need (user and network namespaces): {reason}")


def enter(argv: list[str]) -> int:
    """Runs `argv` in fresh namespaces, as their root; ordinary users may too. Returns its exit status."""
    variant = _working_variant()
    environment = {**_environment(), INSIDE: "1"}
    child = subprocess.Popen(["unshare", *variant, *argv], env=environment, preexec_fn=_die_with_parent)  # noqa: PLW1509
    # unshare ignores SIGTERM. To kill it kills every process inside. SIGINT reaches them from the terminal.
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: child.kill())}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    status = child.wait()
    for number, handler in previous.items():
        signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def inside() -> bool:
    return os.environ.get(INSIDE) == "1"


def core_shares(nodes: int, cores: list[int]) -> list[list[int]]:
    """Each node's own cores; nodes share cores only if there are more nodes than cores."""
    each = len(cores) // nodes
    if each == 0:
        return [[cores[node % len(cores)]] for node in range(nodes)]
    return [cores[node * each : (node + 1) * each] for node in range(nodes)]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class ForkedProcess:
    """A forked process, handled as subprocess.Popen's."""

    def __init__(self, pid: int, stdin: int, stdout: int):
        self.pid, self.returncode = pid, None
        self.stdin, self.stdout = os.fdopen(stdin, "wb", 0), os.fdopen(stdout, "rb", 0)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("forked child", timeout)
            time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Nodes:
    """The common part of the lab and its fallback: cores, processes and folders of each node."""

    emulated = False

    def __init__(self, nodes: int, nics: int, cores: list[int] | None = None):
        cores = sorted(os.sched_getaffinity(0)) if cores is None else cores
        self.nodes, self.nics = nodes, nics
        self.cores = core_shares(nodes, cores)
        self.cores_shared = nodes > len(cores)
        self._processes: list[subprocess.Popen | ForkedProcess] = []
        self._folder = self._make_folder()

    def _make_folder(self) -> Path:
        return Path(tempfile.mkdtemp(prefix="deft-lab-"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def folder(self, node: int) -> Path:
        """The folder of the node's sockets and logs; gone when the lab closes."""
        path = self._folder / f"node{node}"
        path.mkdir(exist_ok=True)
        return path

    def common_folder(self, name: str) -> Path:
        """A folder of no node; gone when the lab closes."""
        path = self._folder / name
        path.mkdir(exist_ok=True)
        return path

    def prefix(self, node: int) -> list[str]:
        """The words before a command that run it in this node."""
        return ["taskset", "-c", ",".join(map(str, self.cores[node]))]

    def start(self, node: int, argv: list[str], **popen) -> subprocess.Popen:
        """Starts a process of this node; it ends with the lab at the latest."""
        argv = [*self.prefix(node), *argv]
        process = subprocess.Popen(argv, preexec_fn=_die_with_parent, **popen)  # noqa: PLW1509
        self._keep(process)
        return process

    def fork(
        self, node: int, function: Callable[[int, int], None], environment: dict[str, str], log: Path
    ) -> ForkedProcess:
        """Forks this process into the node to run function(input, output), with everything that is imported already.

        The two descriptors are the other ends of the child's pipes; what it prints goes to `log`.
        """
        (child_in, stdin), (stdout, child_out) = os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(stdin)
                os.close(stdout)
                self._become(node, environment, log)
                function(child_in, child_out)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        os.close(child_in)
        os.close(child_out)
        child = ForkedProcess(pid, stdin, stdout)
        self._keep(child)
        return child

    def _become(self, node: int, environment: dict[str, str], log: Path) -> None:
        _die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        for process in self._processes:  # another child's pipe, held open here, would hide that child's end from it
            if isinstance(process, ForkedProcess):
                process.stdin.close()
                process.stdout.close()
        os.environ.update(environment)
        os.sched_setaffinity(0, self.cores[node])

    def _keep(self, process: subprocess.Popen | ForkedProcess) -> None:
        self._processes = [p for p in self._processes if p.poll() is None] + [process]

    def _end_processes(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def close(self) -> None:
        self._end_processes()
        shutil.rmtree(self._folder, ignore_errors=True)


class Loopback(Nodes):
    """The fallback: nodes that are nothing but their own cores and a loopback address.

    No namespace ends with this process, so on SIGTERM it leaves in order.
    """

    def __enter__(self):
        self._handler = signal.signal(signal.SIGTERM, self._leave)
        return super().__enter__()

    def _leave(self, *_):
        # Python drops an exit that is raised in a callback, such as those of its importer. So an alarm raises it again.
        signal.signal(signal.SIGALRM, self._leave)
        signal.alarm(2)
        sys.exit(128 + signal.SIGTERM)

    def __exit__(self, *what):
        signal.alarm(0)
        super().__exit__(*what)
        signal.signal(signal.SIGTERM, self._handler)

    def address(self, node: int, nic: int = 0) -> str:
        return f"127.0.0.{node + 1}"

    def interfaces(self, count: int | None = None) -> list[str]:
        return ["lo"]

    def shape(self, rates: list[str] | None) -> None:
        """Nothing can be shaped here."""

    def change(self, nic: int, rate: str | None, node: int | None = None) -> None:
        """Nor changed."""


class Lab(Nodes):
    """Nodes with NICs of their own; only inside what `enter` has started."""

    emulated = True

    def __init__(self, nodes: int, nics: int, cores: list[int] | None = None):
        super().__init__(nodes, nics, cores)
        self._limits: dict[tuple[int, int], str | None] = {}  # of node and NIC; a NIC that is not here has no limit
        self._down: set[tuple[int, int]] = set()
        try:
            self._make_networks()
        except CommandFailed as failure:
            raise Unavailable(str(failure)) from failure

    def _make_folder(self) -> Path:
        try:
            _run("mount", "-t", "tmpfs", "tmpfs", "/run")
        except CommandFailed as failure:
            raise Unavailable(str(failure)) from failure
        Path("/run/netns").mkdir()
        return Path("/run")

    def _make_networks(self) -> None:
        _run("ip", "link", "set", "lo", "up")
        for nic in range(self.nics):
            _run("ip", "link", "add", f"br{nic}", "type", "bridge")
            _run("ip", "link", "set", f"br{nic}", "addrgenmode", "none", "up")
        for node in range(self.nodes):
            self._add_node(node)

    def _add_node(self, node: int) -> None:
        name = f"node{node}"
        _run("ip", "netns", "add", name)
        _run("ip", "-n", name, "link", "set", "lo", "up")
        for nic in range(self.nics):
            outer, inner = self._ends(node, nic)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
            _run("ip", "link", "set", outer, "master", f"br{nic}", "addrgenmode", "none", "up")
            _run("ip", "-n", name, "link", "set", inner, "addrgenmode", "none")
            _run("ip", "-n", name, "addr", "add", f"{self.address(node, nic)}/24", "dev", inner)
            self._take_up(node, nic)

    def _take_up(self, node: int, nic: int) -> None:
        """The NIC's route names TCP's congestion control, so that TCP is the same on all machines.

        BBR, which some machines have as their default, paces what follows a pause by an older estimate: on a shaped NIC
        a transfer of 90 ms took 20 to 60 ms longer in a third of the steps. The namespace's own default would do, but
        there Linux takes only algorithms that the machine's administrator has allowed.
        """
        _run("ip", "-n", f"node{node}", "link", "set", f"eth{nic}", "up")
        address = self.address(node, nic)
        network = [f"{address.rpartition('.')[0]}.0/24", "dev", f"eth{nic}", "scope", "link", "src", address]
        change = ["ip", "-n", f"node{node}", "route", "change", *network, "proto", "kernel", "congctl"]
        try:
            _run(*change, "cubic")
        except CommandFailed:  # an algorithm that the machine does not have; reno is in every kernel
            _run(*change, "reno")

    @staticmethod
    def _ends(node: int, nic: int) -> tuple[str, str]:
        """The names of a veth pair's ends, at the bridge and in the node."""
        return f"n{node}e{nic}", f"eth{nic}"

    def address(self, node: int, nic: int = 0) -> str:
        return f"10.77.{nic}.{node + 1}"

    def interfaces(self, count: int | None = None) -> list[str]:
        return [f"eth{nic}" for nic in range(self.nics if count is None else count)]

    def prefix(self, node: int) -> list[str]:
        return ["ip", "netns", "exec", f"node{node}", *super().prefix(node)]

    def shape(self, rates: list[str] | None) -> None:
        """Limits NIC j of every node to rates[j] (as tc reads it), each way; None takes all limits off."""
        for nic in range(self.nics):
            self.change(nic, rates[nic] if rates else None)

    def change(self, nic: int, rate: str | None, node: int | None = None) -> None:
        """Limits one NIC of one node or of all, while traffic flows: queued packets stay queued.

        At the rate DOWN the node's end is taken down, until it is changed to another one.
        """
        for each in range(self.nodes) if node is None else [node]:
            if (rate == DOWN) != ((each, nic) in self._down):
                if rate == DOWN:
                    _run("ip", "-n", f"node{each}", "link", "set", f"eth{nic}", "down")
                else:
                    self._take_up(each, nic)
                self._down ^= {(each, nic)}
            if rate == DOWN:
                continue
            if self._limits.get((each, nic)) == rate:
                continue
            outer, inner = self._ends(each, nic)
            node_end = ["-n", f"node{each}"]
            _limit([], outer, rate)
            _limit(node_end, inner, rate)
            # Later rates keep the queue and its packets.
            if rate is not None and self._limits.get((each, nic)) is None:
                _run("tc", *node_end, "qdisc", "add", "dev", inner, "parent", "1:1", "pfifo_fast")
            self._limits[each, nic] = rate

    def limit_sending(self, nic: int, rate: str, node: int) -> None:
        """Limits what a node sends over a NIC that has a limit; `shape` and `change` end that."""
        _, inner = self._ends(node, nic)
        _limit(["-n", f"node{node}"], inner, rate)
        self._limits[node, nic] = f"{rate} one way"

    def _become(self, node: int, environment: dict[str, str], log: Path) -> None:
        super()._become(node, environment, log)
        with open(f"/run/netns/node{node}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the network of node {node}")

    def close(self) -> None:
        self._end_processes()  # the namespaces and /run's tmpfs end with this process


def _run(*argv: str) -> None:
    done = subprocess.run(argv, env=_environment(), capture_output=True, text=True)
    if done.returncode:
        raise CommandFailed(f"{' '.join(argv)}: {done.stderr.strip()}")


def _limit(where: list[str], device: str, rate: str | None) -> None:
    """Limits what a device sends; None takes the limit off."""
    if rate is None:
        _run("tc", *where, "qdisc", "del", "dev", device, "root")
    else:
        _run("tc", *where, "qdisc", "replace", "dev", device, "root", "handle", "1:", "tbf", "rate", rate,
             "burst", str(BURST_BYTES), "limit", str(QUEUE_BYTES))  # fmt: skip
