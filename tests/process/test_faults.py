"""Deaths and stalls: every other worker raises an error that names what was lost, in time, and nothing stays behind."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from cluster import MARGIN_S, TIMEOUT_S, Cluster, deft, wait_for_line, wait_until
from held import descriptors
from test_control_groups import control_group

TIMEOUT = f"{TIMEOUT_S:g}s"  # of jobs that lose somebody
TRAIN = """
import signal
group = session.declare("sgd", [deft.Tensor("fc.weight", deft.FLOAT32, (1 << 20,), 0),
                                deft.Tensor("fc.bias", deft.FLOAT32, (1000,), 1)])
steps = int(os.environ.get("STEPS", 10**9))
for step in range(steps):
    if step == 20 and rank == int(os.environ.get("STOPS", -1)):
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        group.ready(0, 2, step)
        group.wait(0, 2, step)
    except deft.DeftError as error:
        say(f"ERROR {time.monotonic()} {error}")
        raise SystemExit(7)
    if step == 5:
        say("training")
session.close()
say("done")
"""


def error_after(worker, moment: float) -> str:
    line = wait_for_line(worker, "ERROR")
    _, seconds, text = line.split(" ", 2)
    late = float(seconds) - moment
    assert late < TIMEOUT_S + MARGIN_S, f"the error came after {late:.1f} s: {text}"
    assert worker.wait(60) == 7
    return text


def start_training(cluster, per_node=1, **variables):
    workers = cluster.start(TRAIN, per_node, **variables)
    for worker in workers:
        wait_for_line(worker, "training")
    return workers


def assert_clean(cluster, node: int, before: int) -> None:
    pid = cluster.daemons[node].pid
    wait_until(lambda: cluster.status(node)["memory_bytes"] == 0, what="shared memory given back")
    wait_until(lambda: cluster.status(node)["jobs"] == [], what="no job left")
    wait_until(lambda: descriptors(pid) <= before, what=f"descriptors given back ({before})")
    assert "deft-" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
@pytest.mark.parametrize("nodes, per_node", [(1, 2), (2, 1), (2, 2)])
def test_a_killed_worker_is_named_and_the_daemons_serve_the_next_job(nodes, per_node, policy):
    with Cluster(nodes, timeout=TIMEOUT) as cluster:
        before = [descriptors(daemon.pid) for daemon in cluster.daemons]
        workers = start_training(cluster, per_node, DEFT_POLICY=policy)
        victim = workers.pop()
        moment = time.monotonic()
        victim.kill()
        for worker in workers:
            text = error_after(worker, moment)
            assert f"rank {len(workers)} (pid {victim.pid}) died" in text
        for node in range(nodes):
            assert_clean(cluster, node, before[node])
        cluster.finish(cluster.start(TRAIN, per_node, STEPS="10", DEFT_POLICY=policy))


def test_a_killed_daemon_is_noticed_on_its_own_node_and_named_on_the_others():
    with Cluster(3, timeout=TIMEOUT) as cluster:
        before = descriptors(cluster.daemons[0].pid)
        workers = start_training(cluster)
        moment = time.monotonic()
        cluster.daemons[1].kill()
        assert "daemon" in error_after(workers[1], moment)
        for rank in (0, 2):
            assert "node 1" in error_after(workers[rank], moment)
        assert_clean(cluster, 0, before)
        cluster.daemons[1].wait()
        cluster.daemons[1] = cluster.start_daemon(1)  # its old socket file needs no cleaning up
        cluster.finish(cluster.start(TRAIN, STEPS="10"))


def test_a_killed_leader_node_is_named_by_all_others():
    with Cluster(3, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster)
        moment = time.monotonic()
        cluster.daemons[0].kill()
        workers[0].kill()
        for rank in (1, 2):
            assert "node 0" in error_after(workers[rank], moment)


def test_a_killed_node_is_named():
    with Cluster(2, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster, per_node=2)
        moment = time.monotonic()
        for process in (cluster.daemons[1], workers[2], workers[3]):
            process.kill()
        for rank in (0, 1):
            assert "node 1" in error_after(workers[rank], moment)


def test_a_stopped_daemon_is_lost_as_a_dead_one():
    with Cluster(2, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster)
        moment = time.monotonic()
        cluster.daemons[1].send_signal(signal.SIGSTOP)
        assert "node 1" in error_after(workers[0], moment)


def test_a_stopped_daemon_is_noticed_by_its_own_workers_and_serves_again_when_continued():
    with Cluster(2, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster, per_node=2)
        moment = time.monotonic()
        cluster.daemons[1].send_signal(signal.SIGSTOP)
        for rank in (2, 3):
            assert "the daemon on this node hangs: no sign of life" in error_after(workers[rank], moment)
        for rank in (0, 1):
            assert "node 1" in error_after(workers[rank], moment)
        cluster.daemons[1].send_signal(signal.SIGCONT)
        cluster.finish(cluster.start(TRAIN, 2, STEPS="10"))


def test_a_node_that_stood_still_and_was_given_up_says_so_when_it_goes_on():
    with Cluster(2, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster)
        for process in (cluster.daemons[1], workers[1]):
            process.send_signal(signal.SIGSTOP)
        assert "node 1" in error_after(workers[0], time.monotonic())
        for process in (cluster.daemons[1], workers[1]):
            process.send_signal(signal.SIGCONT)
        text = error_after(workers[1], time.monotonic())
        assert "deftd on" in text and "had stood still for" in text, text


SURVIVE = """
group = session.declare("sgd", [deft.Tensor("large", deft.FLOAT32, (1 << 24,), 0)])
say("declared")
try:
    group.ready(0, 1, 0)
    group.wait(0, 1, 0)
    say("nothing")
except deft.DeftError:
    say("ERROR")
time.sleep(600)  # without closing its session
"""


def test_the_memory_of_a_dead_worker_comes_back_also_if_the_others_stay():
    with Cluster(2, timeout="200s") as cluster:
        workers = [cluster.start_one(SURVIVE if rank < 3 else SURVIVE.replace("try:", "time.sleep(600)\ntry:"), rank, 2)
                   for rank in range(4)]  # fmt: skip
        for worker in workers:
            wait_for_line(worker, "declared")
        before = cluster.status(1)["memory_bytes"]
        workers[3].kill()
        # Long before the timeout; within a second on a machine that has nothing else to do.
        wait_until(lambda: cluster.status(1)["memory_bytes"] <= before / 2 + (1 << 20), what="half of it")
        for worker in workers[:3]:
            wait_for_line(worker, "ERROR")

        def sessions() -> list[int]:
            return [user["sessions"] for user in cluster.status(1)["users"]]

        wait_until(lambda: sessions() == [2], what="the survivor's session alone, beside this question's")


def test_what_a_dead_worker_alone_had_is_given_back_to_the_last_byte():
    with Cluster(1, timeout="200s") as cluster:

        def taken() -> tuple[int, list[int]]:
            status = cluster.status(0)
            return status["memory_bytes"], [user["memory"] for user in status["users"]]

        other = cluster.start_one(SURVIVE.replace("try:", "time.sleep(600)\ntry:"), 0, DEFT_JOB="other")
        wait_for_line(other, "declared")
        before = taken()
        victim = cluster.start_one(SURVIVE.replace("try:", "time.sleep(600)\ntry:"), 0, DEFT_JOB="victim")
        wait_for_line(victim, "declared")
        assert taken()[0] > before[0] + (1 << 26), "its arena"
        victim.kill()
        wait_until(lambda: taken() == before, what="all of the dead worker's memory, long before the timeout")


@contextlib.contextmanager
def stopped_by_signals(processes):
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    yield
    for process in reversed(processes):
        process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def frozen(group: Path, processes):
    """As a container's engine pauses it, and Slurm a job; a virtual machine that is paused looks alike from within."""
    for process in processes:
        (group / "cgroup.procs").write_text(str(process.pid))
    is_v2 = (group / "cgroup.freeze").exists()
    state, on, off = ("cgroup.freeze", "1", "0") if is_v2 else ("freezer.state", "FROZEN", "THAWED")
    (group / state).write_text(on)
    try:
        yield
    finally:
        (group / state).write_text(off)


def trace_complaints(cluster: Cluster) -> str:
    """What is wrong with the trace of the running job, which ends with this."""
    stopped = deft("trace", "stop", "--socket", cluster.socket(0))
    assert stopped.returncode == 0, stopped.stderr
    merged = deft("trace", "merge", f"{cluster.folder.name}/trace")
    assert merged.returncode == 0, merged.stderr
    return merged.stderr


@pytest.mark.parametrize("way", ["signals", "freezer"])
def test_a_job_that_is_suspended_as_a_whole_goes_on_when_it_is_resumed(way):
    with contextlib.ExitStack() as stack:
        if way == "freezer":
            controller = "freezer" if Path("/sys/fs/cgroup/freezer").is_dir() else "memory"
            group = stack.enter_context(control_group(controller, {}, {}))
        cluster = stack.enter_context(Cluster(2, timeout=TIMEOUT))
        workers = start_training(cluster, DEFT_TRACE=f"{cluster.folder.name}/trace")
        everybody = [*workers, *cluster.daemons]
        with frozen(group, everybody) if way == "freezer" else stopped_by_signals(everybody):
            time.sleep(1.5 * TIMEOUT_S)  # longer than any deadline
        before = cluster.status(0)["jobs"][0]["groups"][0]["step"]
        wait_until(
            lambda: (cluster.status(0)["jobs"] or [{"groups": [{"step": 0}]}])[0]["groups"][0]["step"] > before + 20,
            what="training after the suspension",
        )
        assert all(worker.poll() is None for worker in workers)
        assert "stood still" in cluster.log(0) and "stood still" in cluster.log(1)
        assert trace_complaints(cluster) == ""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_worker_is_reported_with_what_it_owes_and_goes_on_when_continued(victim):
    with Cluster(2, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster, STEPS="40", STOPS=str(victim))

        def owing() -> set[int]:
            stalls = cluster.status(0)["jobs"][0]["stalls"]
            assert all(stall["owes"].startswith("fc.") for stall in stalls), stalls
            return {stall["rank"] for stall in stalls}

        wait_until(lambda: owing() == {victim}, what="the stall in the status")
        time.sleep(TIMEOUT_S)  # longer than any deadline: a living worker is never given up for lost
        assert all(worker.poll() is None for worker in workers)
        told = f"rank {victim} has not handed in 'fc."
        for node in range(2):
            wait_until(lambda n=node: told in cluster.log(n), what=f"the stall in the log of node {node}")
        workers[victim].send_signal(signal.SIGCONT)
        for output in cluster.finish(workers):
            assert "done" in output


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stall_beyond_its_own_limit_ends_the_job_and_names_the_worker(victim):
    with Cluster(2, timeout=TIMEOUT) as cluster:
        workers = start_training(cluster, DEFT_STALL_TIMEOUT="6s")
        workers[victim].send_signal(signal.SIGSTOP)
        text = wait_for_line(workers[1 - victim], "ERROR")
        assert f"rank {victim} (pid" in text and "has not handed in 'fc." in text


@pytest.mark.parametrize("short", [0, 1])
def test_a_rank_that_ends_early_is_named(short):
    with Cluster(2) as cluster:
        workers = [cluster.start_one(TRAIN, rank, STEPS="20" if rank == short else "30") for rank in (0, 1)]
        text = wait_for_line(workers[1 - short], "ERROR")
        assert f"rank {short}" in text and "has ended" in text
        assert workers[short].wait(60) == 0


def test_a_worker_that_exits_by_an_exception_ends_the_others():
    script = TRAIN.replace("if step == 5:", "if step == 20 and rank == 1: raise ValueError('no')\n    if step == 5:")
    with Cluster(2) as cluster:
        workers = cluster.start(script)
        text = wait_for_line(workers[0], "ERROR")
        assert "rank 1" in text


def test_a_stopping_daemon_waits_for_its_jobs():
    with Cluster(1) as cluster:
        workers = start_training(cluster, STEPS="300")
        cluster.daemons[0].terminate()
        for output in cluster.finish(workers):
            assert "done" in output
        assert cluster.daemons[0].wait(60) == 0
        assert not os.path.exists(cluster.socket(0))


SCRIBBLE = """
import random, re
group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (1000,), 0)])
group.ready(0, 1, 0)
group.wait(0, 1, 0)
maps = [line for line in open("/proc/self/maps") if "deft-rings" in line]
begin, end = (int(x, 16) for x in maps[0].split()[0].split("-"))
noise = random.Random(int(os.environ["SEED"]))
say("scribbling")
for _ in range(200):
    length = noise.choice([1, 8, 64, 4096])
    at = noise.randrange(begin, end - length)
    ctypes.memmove(at, noise.randbytes(length), length)
    try:
        session.stage(deft.FORWARD, 1)  # rings the daemon's bell
    except deft.DeftError:
        break
os._exit(0)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_worker_that_scribbles_over_its_rings_harms_nobody_else(seed):
    with Cluster(1) as cluster:
        before = descriptors(cluster.daemons[0].pid)
        hostile = cluster.start_one(SCRIBBLE, 0, DEFT_JOB="hostile", SEED=str(seed))
        honest = cluster.start_one(TRAIN, 0, DEFT_JOB="honest", STEPS="200")
        hostile.communicate(timeout=120)
        out, err = honest.communicate(timeout=120)
        assert "done" in out, err
        assert cluster.daemons[0].poll() is None
        assert_clean(cluster, 0, before)


GIVES_BACK = """
group = session.declare("sgd", [deft.Tensor("w", deft.FLOAT32, (1 << 20,), 0)])
floats, libc, page = vector(group, 0), ctypes.CDLL(None, use_errno=True), 4096
begin = -(-floats.ctypes.data // page) * page
size = (floats.ctypes.data + floats.nbytes - begin) // page * page
for step in range(100):
    floats[:] = 1
    group.ready(0, 1, step)
    assert libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), 9) == 0, ctypes.get_errno()  # MADV_REMOVE: holes
    group.wait(0, 1, step)
session.close()
say("done")
"""


def test_a_worker_that_gives_pages_of_its_arena_back_harms_nobody_else():
    with Cluster(2) as cluster:
        honest = cluster.start(TRAIN, DEFT_JOB="honest", STEPS="200")
        hostile = cluster.start(GIVES_BACK, DEFT_JOB="hostile")
        for output in cluster.finish([*hostile, *honest]):
            assert "done" in output
        assert all(daemon.poll() is None for daemon in cluster.daemons)
