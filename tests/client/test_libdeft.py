"""libdeft and the Python package against real daemons: results, mismatches, losses."""

import re
import signal

import pytest
from local_daemons import DAEMON, Daemons, finish

SHAPES = [(1, 1), (1, 2), (2, 2), (2, 4)]  # nodes, workers
COLLECTIVES = "allreduce,large_allreduce,broadcast,allgather,nothing,barrier,many_at_once"
GRADIENTS = "gradients,two_groups,threads"


@pytest.fixture(scope="module", autouse=True)
def built():
    assert DAEMON.exists(), f"{DAEMON} is missing: build the targets deftd and python first"


@pytest.fixture
def daemons(tmp_path):
    running = []

    def start(nodes=1, **options):
        running.append(Daemons(tmp_path, nodes, **options))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.mark.parametrize("scenarios", [COLLECTIVES, GRADIENTS], ids=["collectives", "gradients"])
@pytest.mark.parametrize(("nodes", "workers"), SHAPES)
def test_results(daemons, nodes, workers, scenarios):
    daemons(nodes).run(scenarios, workers)


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_gradients_under_each_policy(daemons, policy):
    daemons(2, policy=policy, partition_bytes="64KB", bucket_bytes="128KB").run("gradients", 2)


@pytest.mark.parametrize("nodes", [1, 2])
def test_mismatches_name_both(daemons, nodes):
    daemons(nodes).run("mismatched_collectives,mismatched_declaration", 2)


def test_completions_call_back_in_python(daemons):
    daemons(2).run("callbacks", 2)


@pytest.mark.parametrize("links", ["gloo:lo", "tcp:lo"])
def test_groups_that_are_released_make_room_for_others(daemons, links):
    daemons(2, links=links).run("releases", 4)


def test_memory_of_arenas_outlives_group_and_session(daemons):
    daemons(2).run("arenas_that_stay", 2)


def test_the_store_and_the_daemons_status(daemons):
    daemons(2).run("store", 2)


def test_full_memory_fails_only_what_asked_for_it(daemons):
    daemons(1, memory_limit="32MB").run("full_memory", 2)


def test_forked_children_do_not_disturb(daemons):
    daemons(1).run("closes_while_forked", 2)


def started(workers):
    for worker in workers:
        assert worker.stdout.readline() == "running\n", worker.communicate()


def kill_the_last_worker(running, workers):
    """All others name it, and the daemons serve the next job."""
    processes = running.start_workers("last_one_dies", workers)
    started(processes)
    processes[-1].kill()
    results = finish(processes)
    for status, output in results[:-1]:
        assert status == 0, output
        assert re.search(rf"rank {workers - 1} \(pid \d+\) died", output), output
    running.run("allreduce", workers)


@pytest.mark.parametrize(("nodes", "workers"), [(1, 2), (2, 2), (2, 4)])
def test_a_killed_worker_is_named_to_all_others(daemons, nodes, workers):
    kill_the_last_worker(daemons(nodes), workers)


def test_a_killed_daemon_is_told_to_all(daemons):
    running = daemons(2, timeout="20s")  # in which all four workers have come
    processes = running.start_workers("last_one_dies", 4)
    started(processes)
    running.processes[1].send_signal(signal.SIGKILL)
    named = ["node 1", "node 1", "the daemon on this node is gone"]
    for worker, name in zip(processes, named, strict=False):
        output, _ = worker.communicate(timeout=60)  # it would wait for ever without the deadline
        assert worker.returncode == 0, output
        assert name in output, output
    processes[3].kill()
    processes[3].wait()


def test_a_wrong_world_is_refused_on_all_sides(daemons):
    running = daemons(1, timeout="8s")  # in which both workers have come
    processes = running.start_workers("allreduce", 2, LOCAL_WORLD_SIZE="1", LOCAL_RANK="0")
    results = finish(processes)
    assert all(status != 0 for status, _ in results), results
    # Each says that it is alone on its node: the daemon takes one of them, which then waits for the other's node.
    assert sum("is running on this daemon with rank" in output for _, output in results) == 1, results
    assert sum("DeftError: attach rank" in output for _, output in results) == 2, results
