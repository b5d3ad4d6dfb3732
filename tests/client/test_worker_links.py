"""Links that run in the workers' processes, against real daemons: results, mixes with daemon-run links, losses."""

import re
import signal

import pytest
from local_daemons import finish, wait_until
from test_libdeft import (  # noqa: F401  (fixtures)
    COLLECTIVES,
    GRADIENTS,
    built,
    daemons,
    kill_the_last_worker,
    started,
)

ALONE, MIXED = "tcp:lo", "gloo:lo,tcp:lo"


@pytest.mark.parametrize("scenarios", [COLLECTIVES, GRADIENTS], ids=["collectives", "gradients"])
@pytest.mark.parametrize("links", [ALONE, MIXED])
@pytest.mark.parametrize(("nodes", "workers"), [(1, 2), (2, 2), (2, 4)])
def test_results(daemons, nodes, workers, links, scenarios):  # noqa: F811
    daemons(nodes, links=links).run(scenarios, workers)


@pytest.mark.parametrize("links", [ALONE, MIXED])
@pytest.mark.parametrize("policy", ["mgwfbp", "p3", "bytescheduler", "knapsack"])
def test_gradients_under_each_policy(daemons, policy, links):  # noqa: F811
    sizes = {"partition_bytes": "64KB", "bucket_bytes": "128KB"}
    daemons(2, links=links, policy=policy, **sizes).run("gradients", 2)


def test_both_links_of_a_mix_carry_gradients(daemons):  # noqa: F811
    running = daemons(2, links=MIXED, policy="p3", partition_bytes="64KB")
    outputs = running.run("gradients,link_bytes", 2)
    for output in outputs:
        shares = dict(line.split() for line in output.splitlines() if line)
        assert set(shares) == {"gloo:lo", "tcp:lo"}, output
        assert all(int(share) > 100_000 for share in shares.values()), output


def test_a_session_opens_again_in_the_same_process(daemons):  # noqa: F811
    daemons(2, links=MIXED).run("allreduce,opens_again,gradients", 2)


def test_nothing_is_left_of_a_closed_session(daemons):  # noqa: F811
    daemons(2, links=ALONE).run("leaves_nothing", 2)


@pytest.mark.parametrize("links", [ALONE, MIXED])
@pytest.mark.parametrize(("nodes", "workers"), [(1, 2), (2, 2), (2, 4)])
def test_a_killed_worker_is_named_to_all_others(daemons, nodes, workers, links):  # noqa: F811
    kill_the_last_worker(daemons(nodes, links=links), workers)


@pytest.mark.parametrize("links", [ALONE, MIXED])
def test_a_worker_killed_in_mid_operation_is_named_to_all_others(daemons, links):  # noqa: F811
    running = daemons(2, links=links, timeout="200s")
    processes = running.start_workers("trains_until_it_fails", 4)
    started(processes)
    processes[3].kill()
    results = finish(processes, seconds=60)  # and not only after the timeout
    for status, output in results[:-1]:
        assert status == 0, output
        assert re.search(r"rank 3 \(pid \d+\) died", output), output
    running.run("gradients", 2)


def test_a_stopped_worker_is_waited_for(daemons):  # noqa: F811
    running = daemons(2, links=ALONE, timeout="10s")
    processes = running.start_workers("stops_itself", 2)
    wait_until(lambda: "stalled: rank 1" in running.log(0), what="the daemon's word that rank 1 is late")
    processes[1].send_signal(signal.SIGCONT)
    results = finish(processes)
    assert all(status == 0 for status, _ in results), results


def test_a_killed_daemon_is_told_to_all(daemons):  # noqa: F811
    running = daemons(2, links=ALONE, timeout="20s")  # in which all four workers have come
    processes = running.start_workers("trains_until_it_fails", 4)
    started(processes)
    running.processes[1].send_signal(signal.SIGKILL)
    for rank, (status, output) in enumerate(finish(processes)):
        assert status == 0, output
        told = r"node 1: \S+ \(rank 2-3\) was lost" if rank < 2 else "the daemon on this node is gone"
        assert re.search(told, output), output


def test_a_link_that_cannot_open_in_one_worker_is_told_to_all(daemons):  # noqa: F811
    running = daemons(2, links=ALONE, timeout="200s")
    results = finish(running.start_workers("starve,allreduce", 2), seconds=60)  # nobody waits for the deadline
    for status, output in results:
        assert status != 0, output
        assert "tcp:lo" in output, output
        assert "Too many open files" in output, output
    assert "rank 1" in results[0][1], results[0][1]
    running.run("allreduce", 2)
