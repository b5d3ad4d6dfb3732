import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

import pytest
from lab import events, governor
from lab.events import NicEvent, Straggler, parse_nic_event, parse_straggler
from lab_commands import ROOT


def test_events_are_read_as_they_are_written():
    assert parse_nic_event("eth1@step 50: 50mbit", 2, 2) == NicEvent(50, 1, None, "50mbit")
    assert parse_nic_event(" node1/eth0 @ step 5 : 1gbit ", 2, 2) == NicEvent(5, 0, 1, "1gbit")
    assert parse_nic_event("node1/eth1@step 5: down", 2, 2) == NicEvent(5, 1, 1, "down")
    assert parse_straggler("node1@step 30: 0.5", 2) == Straggler(30, 1, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("eth1@50: 50mbit", "write it as"),
        ("node1@step 5: 50mbit", "write it as"),
        ("eth2@step 5: 50mbit", "there are eth0 to eth1 on node0 to node1"),
        ("node2/eth0@step 5: 50mbit", "there are eth0 to eth1 on node0 to node1"),
        ("eth0@step 5: x", "'x' is no rate"),
    ],
)
def test_a_nic_event_that_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_nic_event(text, 2, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node1@step 5: 1", "the share is a number from 0.01 to below 1"),
        ("node1@step 5: 0", "the share is a number from 0.01 to below 1"),
        ("node1@step 5: x", "the share is a number from 0.01 to below 1"),
        ("node2@step 5: 0.5", "there are node0 to node1"),
        ("eth1@step 5: 0.5", "write it as"),
    ],
)
def test_a_straggler_that_cannot_be_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_straggler(text, 2)


def test_each_event_happens_once_when_its_step_is_reached(tmp_path):
    class Lab:
        changed = []

        def change(self, *what):
            self.changed.append(what)

    due = [NicEvent(7, 1, None, "5mbit"), NicEvent(3, 0, 1, "9mbit")]
    running = events.Events(Lab(), None, due, tmp_path)
    assert [len(running.reached(step)) for step in range(1, 9)] == [0, 0, 1, 0, 0, 0, 1, 0]
    assert running.still_due() == []
    assert Lab.changed == [(0, "9mbit", 1), (1, "5mbit", None)]


# Uses the CPU, and says so after each tenth of a second of it.
BUSY = """
import time
used = 0.0
while True:
    print("up", flush=True)
    used += 0.1
    while time.process_time() < used:
        pass
"""


class Node:
    """The parts of a lab and of a job that a straggler needs: one node of one core, on which `process` runs."""

    cores = ([0],)

    def __init__(self, process):
        self.process = process
        self.governor = None

    def processes(self, _node):
        return [self.process.pid]

    def fork(self, _node, work, _variables, _log):
        script = f"from lab.governor import govern; govern{work.args}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
        self.governor = subprocess.Popen([sys.executable, "-c", script], env=environment)
        return self.governor


@contextlib.contextmanager
def changes_of_children():
    """Inside, await_child() waits for a child that stops, goes on or ends; false if none does within 60 seconds."""
    ours, signalled = socket.socketpair()
    signalled.setblocking(False)
    handler = signal.signal(signal.SIGCHLD, lambda *_: None)
    descriptor = signal.set_wakeup_fd(signalled.fileno())
    try:
        yield lambda: bool(select.select([ours], [], [], 60)[0]) and ours.recv(100) != b""
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGCHLD, handler)
        ours.close()
        signalled.close()


def test_the_governor_gives_no_more_than_the_share_and_its_end_frees_the_process(tmp_path):
    busy = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE)
    node = Node(busy)
    running = events.Events(node, node, [Straggler(1, 0, 0.25)], tmp_path)
    try:
        assert busy.stdout.readline() == b"up\n"
        with changes_of_children() as await_child:
            running.reached(1)
            while state(busy.pid) != "T":  # the governor has begun
                assert await_child() and node.governor.poll() is None
        began, before = time.monotonic(), governor.cpu_seconds(busy.pid)

        def used() -> float:
            return governor.cpu_seconds(busy.pid) - before

        while used() < 0.5:  # it goes on
            assert busy.stdout.readline() == b"up\n" and node.governor.poll() is None
        # What a late check of the governor lets through is paid back later. Without it the process has no pause.
        while used() >= 0.25 * (time.monotonic() - began) + 0.1:
            assert time.monotonic() < began + 60, used()
            assert busy.stdout.readline() == b"up\n" and node.governor.poll() is None
        os.kill(busy.pid, signal.SIGSTOP)
        running.end()
        assert node.governor.poll() is not None and state(busy.pid) != "T"
    finally:
        running.end()
        busy.kill()
        busy.wait()
        busy.stdout.close()


def state(process):
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_an_ended_process_has_used_no_cpu():
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert governor.cpu_seconds(done.pid) == 0


CHANGES = """
import subprocess, sys
sys.path.insert(0, "bench")
from lab import netns
if not netns.inside():
    sys.exit(netns.enter([sys.executable, *sys.argv]))
def rates():
    out = []
    for node in (0, 1):
        for nic in (0, 1):
            for where, device in (["-n", f"node{node}"], f"eth{nic}"), ([], f"n{node}e{nic}"):
                shown = subprocess.check_output(["tc", *where, "qdisc", "show", "dev", device], text=True).split()
                out.append(shown[shown.index("rate") + 1] if "rate" in shown else "-")
    print(" ".join(out), flush=True)
with netns.Lab(nodes=2, nics=2) as lab:
    lab.change(1, "20Mbit", node=0); rates()
    lab.shape(["100Mbit", "50Mbit"]); rates()
    lab.change(0, "10Mbit"); rates()
    lab.shape(["100Mbit", "50Mbit"]); rates()
    lab.shape(None); rates()
    def up():
        for node, end in ((0, " "), (1, "\\n")):
            text = subprocess.check_output(["ip", "-n", f"node{node}", "link", "show", "eth1"], text=True)
            print("UP" in text.partition("<")[2].partition(">")[0].split(","), end=end, flush=True)
    def routes():
        return subprocess.check_output(["ip", "-n", "node1", "route"], text=True)
    before = routes()
    lab.change(1, "down", node=1); up()
    lab.change(1, "down"); up()
    lab.shape(None); up()
    print(sorted(before.splitlines()) == sorted(routes().splitlines()), before.count(" congctl "))
"""


def test_a_changed_nic_is_restored_by_the_next_shaping(emulated, tmp_path):
    script = tmp_path / "changes.py"
    script.write_text(CHANGES)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT, timeout=180)
    assert done.stdout.splitlines() == [
        "- - 20Mbit 20Mbit - - - -",
        "100Mbit 100Mbit 50Mbit 50Mbit 100Mbit 100Mbit 50Mbit 50Mbit",
        "10Mbit 10Mbit 50Mbit 50Mbit 10Mbit 10Mbit 50Mbit 50Mbit",
        "100Mbit 100Mbit 50Mbit 50Mbit 100Mbit 100Mbit 50Mbit 50Mbit",
        "- - - - - - - -",
        "True False",
        "False False",
        "True True",
        "True 2",
    ], done.stderr
