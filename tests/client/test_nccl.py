"""NCCL links against real daemons, over the fakes of tests/nccl; and what a build without NCCL says."""

import re
import signal
import subprocess
import time

import pytest
from local_daemons import BUILD, finish
from test_libdeft import COLLECTIVES, GRADIENTS, built, daemons, started  # noqa: F401  (fixtures)

FAKES = BUILD / "tests" / "fakes"
with_nccl = pytest.mark.skipif(not (FAKES / "libnccl.so.2").exists(), reason="this build has no NCCL link")
without_nccl = pytest.mark.skipif((FAKES / "libnccl.so.2").exists(), reason="this build has the NCCL link")
FOUND = {"LD_LIBRARY_PATH": str(FAKES)}


@with_nccl
@pytest.mark.parametrize("scenarios", [COLLECTIVES, GRADIENTS], ids=["collectives", "gradients"])
@pytest.mark.parametrize("links", ["nccl", "gloo:lo,nccl:lo"])
@pytest.mark.parametrize(("nodes", "workers"), [(1, 2), (2, 2), (2, 4)])
def test_results(daemons, nodes, workers, links, scenarios):  # noqa: F811
    daemons(nodes, links=links).run(scenarios, workers, **FOUND)


@with_nccl
def test_gradients_in_device_memory_are_reduced_where_they_lie(daemons):  # noqa: F811
    daemons(2, links="nccl", policy="p3", partition_bytes="64KB").run("device_gradients", 4, **FOUND)


@with_nccl
def test_a_mix_with_host_links_says_that_gradients_go_through_the_host(daemons):  # noqa: F811
    daemons(2, links="gloo:lo,nccl").run("not_on_device", 2, **FOUND)


@with_nccl
def test_a_killed_worker_is_named_to_all_others(daemons):  # noqa: F811
    running = daemons(2, links="nccl")
    processes = running.start_workers("trains_until_it_fails", 4, **FOUND)
    started(processes)
    processes[3].kill()
    for status, output in finish(processes)[:-1]:
        assert status == 0, output
        assert re.search(r"rank 3 \(pid \d+\) died", output), output


@with_nccl
def test_a_network_that_is_lost_ends_the_job_although_nccl_does_not_notice(daemons):  # noqa: F811
    running = daemons(2, links="nccl", timeout="4s")
    processes = running.start_workers("trains_until_nothing_moves", 4, FAKE_NCCL_SILENT_AFTER="20", **FOUND)
    for status, output in finish(processes):
        assert status == 0, output
        assert re.search(r"nothing has come through link nccl for \d+ ms", output), output


@with_nccl
def test_a_worker_that_is_stopped_in_the_middle_of_a_collective_is_waited_for(daemons):  # noqa: F811
    running = daemons(2, links="nccl", timeout="4s")
    processes = running.start_workers("trains_until_it_fails", 4, **FOUND)
    started(processes)
    processes[3].send_signal(signal.SIGSTOP)
    time.sleep(6)
    assert [process.poll() for process in processes] == [None] * 4
    processes[3].kill()
    for status, output in finish(processes)[:-1]:
        assert status == 0, output
        assert re.search(r"rank 3 \(pid \d+\) died", output), output


@with_nccl
def test_a_worker_without_a_gpu_is_named_on_every_side(daemons):  # noqa: F811
    results = finish(daemons(2, links="nccl").start_workers("allreduce", 2, FAKE_CUDA_DEVICES="0", **FOUND))
    for status, output in results:
        assert status != 0, output
        assert "nccl: cudaGetDeviceCount" in output, output


@with_nccl
def test_versions_that_differ_are_named_on_every_side(daemons):  # noqa: F811
    running = daemons(2, links="nccl")
    workers = running.start_workers("allreduce", 4, own={3: {"FAKE_NCCL_VERSION": "22703"}}, **FOUND)
    for status, output in finish(workers):
        assert status != 0, output
        assert "rank 3 has NCCL 2.27.3" in output, output
        assert "install the same version of NCCL on all nodes" in output, output


@with_nccl
def test_a_library_that_is_missing_is_named_on_every_side(daemons):  # noqa: F811
    results = finish(daemons(2, links="nccl").start_workers("allreduce", 2, LD_LIBRARY_PATH="/nonexistent"))
    for status, output in results:
        assert status != 0, output
        assert "cannot be loaded in this worker" in output or "cudaGetDeviceCount" in output, output


@without_nccl
def test_a_build_without_nccl_says_so_to_all_workers(daemons):  # noqa: F811
    results = finish(daemons(2, links="nccl:lo").start_workers("allreduce", 2))
    for status, output in results:
        assert status != 0, output
        assert "the link backend 'nccl' is not in this build" in output, output


def test_libdeft_links_neither_nccl_nor_cuda(built):  # noqa: F811
    needed = subprocess.run(["readelf", "-d", BUILD / "lib" / "libdeft.so"], capture_output=True, text=True, check=True)
    assert "NEEDED" in needed.stdout
    assert "nccl" not in needed.stdout
    assert "cuda" not in needed.stdout
