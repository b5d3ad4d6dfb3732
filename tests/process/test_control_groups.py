"""Daemons in control groups with little memory and processor time: errors that name the limit, and no death."""

import contextlib
import errno
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, json_of, wait_until

MIB = 1 << 20
LIMIT = 192 * MIB
TRAIN = """
floats = int(os.environ["FLOATS"])
group = session.declare("g", [deft.Tensor("t", deft.FLOAT32, (floats,), 0)])
for step in range(3):
    vector(group, 0)[:floats] = rank + 1
    group.ready(0, 1, step)
    group.wait(0, 1, step)
    assert (vector(group, 0)[:floats] == sum(range(1, size + 1))).all()
session.close()
say("trained")
"""


def group_folder(controller: str) -> tuple[Path, bool] | None:
    """The folder of this process's control group, and whether it is of the second version."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            root = Path("/sys/fs/cgroup", controller)
            return (root / path[1:] if (root / path[1:]).is_dir() else root), False
    root = Path("/sys/fs/cgroup")
    if controller in (root / "cgroup.subtree_control").read_text().split():
        return root, True
    return None


@contextlib.contextmanager
def control_group(controller: str, first: dict[str, str], second: dict[str, str]) -> Iterator[Path]:
    """A group with these values in its files: of the first or of the second version, as this machine has it."""
    found = group_folder(controller)
    if found is None:
        pytest.skip(f"no control group can be made here: there is no {controller} controller")
    parent, is_v2 = found
    folder = parent / f"deft-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        pytest.skip(f"no control group can be made here: {error}")
    try:
        for name, value in (second if is_v2 else first).items():
            (folder / name).write_text(value)
        yield folder
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text(), what="the end of the group's processes")
        folder.rmdir()


def memory_group(limit: int):
    return control_group("memory", {"memory.limit_in_bytes": str(limit)}, {"memory.max": str(limit)})


def inside(folder: Path, program: Path) -> list[str]:
    """A command that runs the program in the group."""
    return ["/bin/sh", "-c", f'echo $$ >{folder}/cgroup.procs && exec {program} "$@"', "sh"]


class Confined(Cluster):
    """The daemons share a group; the workers are outside."""

    def __init__(self, group: Path, nodes: int = 1, **options: str):
        super().__init__(nodes, **options)
        self.program = Path(self.folder.name, "deftd")
        words = " ".join(f"'{word}'" for word in inside(group, BUILD / "bin/deftd"))
        self.program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        self.program.chmod(0o755)

    def start_daemon(self, node: int, **given) -> subprocess.Popen:
        return super().start_daemon(node, program=self.program, **given)

    def train(self, megabytes: int, per_node: int = 1) -> list[tuple[bool, str]]:
        """Of each worker: whether it trained, and its error."""
        workers = self.start(TRAIN, per_node, FLOATS=str(megabytes * MIB // 4))
        outputs = [worker.communicate(timeout=120) for worker in workers]
        assert all(daemon.poll() is None for daemon in self.daemons), f"a daemon died: {outputs}"
        return [("trained" in out, error) for out, error in outputs]


def test_a_job_that_is_too_large_for_the_group_is_refused_and_the_next_one_trains():
    with memory_group(LIMIT) as group, Confined(group, timeout="60s") as cluster:
        assert cluster.status()["memory_limit_bytes"] == LIMIT // 2
        [(trained, error)] = cluster.train(megabytes=LIMIT // MIB)
        assert not trained and "the daemon's shared memory is full" in error and "DEFT_MEMORY_LIMIT" in error
        assert cluster.train(megabytes=8) == [(True, "")]


def test_a_limit_that_is_larger_than_the_group_is_no_way_around_it():
    with memory_group(LIMIT) as group, Confined(group, timeout="60s", memory_limit="4GB") as cluster:
        [(trained, error)] = cluster.train(megabytes=LIMIT // MIB)
        assert not trained and "bytes that are free" in error and "the container more memory" in error, error
        assert cluster.train(megabytes=8) == [(True, "")]


def test_no_size_of_a_job_makes_the_kernel_kill_the_daemon():
    """Two workers want memory at the same time."""
    with memory_group(LIMIT) as group, Confined(group, timeout="60s", memory_limit="4GB") as cluster:
        seen = set()
        for megabytes in (24, 64, 80, 84, 88, 120):
            outcomes = cluster.train(megabytes, per_node=2)
            errors = [error for trained, error in outcomes if not trained]
            refused = [error for error in errors if "the container more memory" in error]
            assert not errors or refused, errors  # the other worker may hear that its peer has ended
            assert all(re.search(r"rank [01] .*(has ended|died)", error) for error in errors if error not in refused)
            seen.update(trained for trained, _ in outcomes)
        assert seen == {True, False}, "some fit and some do not"


def test_two_daemons_of_one_group_take_no_more_than_it_has():
    """Each sees the same free memory, and both begin to allocate at the same time."""
    with memory_group(LIMIT) as group, Confined(group, nodes=2, timeout="60s", memory_limit="4GB") as cluster:
        seen = set()
        for megabytes in (24, 80, 100, 120, 140):
            for trained, error in cluster.train(megabytes):
                assert trained or "the container more memory" in error, error
                seen.add(trained)
        assert seen == {True, False}, "some fit and some do not"


def doctor(group: Path) -> dict[str, dict]:
    words = [*inside(group, BUILD / "bin/deft"), "doctor", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return {row["check"]: row for row in json_of(done)}


def test_doctor_names_the_limits_of_the_group():
    with memory_group(LIMIT) as group:
        found = doctor(group)["memory"]
    assert found["health"] == "warn" and "half of the 192 MB of the control group" in found["found"], found
    limit = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    with control_group("cpu", limit, {"cpu.max": "50000 100000"}) as group:
        found = doctor(group)["cores"]
    assert found["health"] == "warn" and "the control group gives the time of 0.5 cores" in found["found"], found
    assert "limits.cpu" in found["fix"]
