"""The processes of one scheme, which here only pretend to be any."""

import subprocess
from pathlib import Path

import pytest
from lab import job, services
from lab.assignment import Training
from lab.job import Job
from lab.netns import Loopback
from lab.schemes import parse


class Process:
    """Runs until it is ended by `code`."""

    count = 0

    def __init__(self, node, argv):
        Process.count += 1
        self.node, self.argv, self.pid, self.code = node, argv, Process.count, None

    def poll(self):
        return self.code


class Lab(Loopback):
    """Two nodes with two NICs each."""

    def __init__(self):
        super().__init__(2, 2)
        self.processes = []

    def interfaces(self, count=None):
        return [f"eth{nic}" for nic in range(self.nics if count is None else count)]

    def start(self, node, argv, **popen):
        for word in argv:
            if word.endswith(".sock"):
                Path(word).touch()
        self.processes.append(Process(node, argv))
        popen["stdout"].write(f"{argv[0]} {argv[1]} says something\n".encode())
        return self.processes[-1]


@pytest.fixture
def lab():
    with Lab() as made:
        yield made


@pytest.fixture
def build(tmp_path):
    """As if all were built."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/deftd").touch()
    return tmp_path


def job_of(lab, build, scheme, links=(), framework="torch"):
    training = Training("mlp", None, 32, 1, 0.1, 1, build, links, framework=framework)
    return Job(lab, parse(scheme, 2), training, 1, build)


def started_on(lab, node):
    return [process.pid for process in lab.processes if process.node == node]


def test_the_processes_of_a_node_are_all_that_run_there(lab, build):
    made = job_of(lab, build, "fifo", ("gloo:eth0", "ps:eth1"))
    made._services.start_deft(build)
    assert ["server" in process.argv for process in lab.processes] == [True, True, False, False]
    assert [made.processes(node) for node in (0, 1)] == [started_on(lab, 0), started_on(lab, 1)]


def test_so_are_those_of_a_frameworks_own_distribution(lab, build):
    made = job_of(lab, build, "own", framework="mxnet")
    made._services.start_helpers("mxnet", Path("python"))  # a scheduler, and a server on each node
    assert [process.node for process in lab.processes] == [0, 0, 1]
    assert [made.processes(node) for node in (0, 1)] == [started_on(lab, 0), started_on(lab, 1)]


def test_a_parameter_server_that_has_ended_is_named_with_what_it_said(lab, build, monkeypatch):
    monkeypatch.setattr(services.time, "sleep", lambda _: None)
    made = job_of(lab, build, "fifo", ("ps:eth1",))
    made._services.start_deft(build)
    lab.processes[1].code = 1
    (build / "1-fifo-worker0.log").write_text("nobody answers")
    text = str(made._services.failure("worker 0 has ended", "worker0"))
    assert text.startswith("fifo: worker 0 has ended. Its last lines:\n    nobody answers\n")
    assert f"server0.1 has ended. Its last lines:\n    {build}/bin/deftd server says something" in text


def test_a_parameter_server_that_ends_at_once_ends_the_start(lab, build, monkeypatch):
    monkeypatch.setattr(services.time, "sleep", lambda _: None)
    monkeypatch.setattr(Process, "poll", lambda self: 1 if "server" in self.argv and self.node == 1 else None)
    monkeypatch.setattr(services.os.path, "exists", lambda _: False)
    made = job_of(lab, build, "fifo", ("ps:eth0",))
    with pytest.raises(job.JobFailed, match=r"server0\.1 did not start"):
        made._services.start_deft(build)


def test_a_daemon_that_does_not_answer_is_a_failure_of_the_scheme(lab, build, monkeypatch):
    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(job.subprocess, "run", hang)
    made = job_of(lab, build, "fifo")
    for ask in (made.bucket_bytes, lambda: made.trace(build, 3)):
        with pytest.raises(job.JobFailed, match=r"fifo: deft (status|trace): no answer within"):
            ask()
