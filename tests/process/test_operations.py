"""What an operator does with a daemon that serves jobs: drain, stop, reload, check a configuration."""

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, deft, json_of, wait_for_line, wait_until
from hostile import WELCOME, Client

NOBODY = 65534

WAIT = """
say("here")
while not os.path.exists(os.environ["END"]):
    time.sleep(0.01)
session.barrier("together")
session.close()
"""

REFUSED = """
try:
    deft.open()
except deft.DeftError as error:
    say(error)
"""

INTERRUPTED = """
import deft, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # who started the tests may have it ignored
try:
    deft.open()
except KeyboardInterrupt:
    print("interrupted")
"""

STUBBORN = """
say("here")
try:
    if rank == 0:
        session.barrier("rank 1 does not come")
    time.sleep(600)
except deft.DeftError as error:
    say(error)
"""


def deftd(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([BUILD / "bin/deftd", *words], capture_output=True, text=True, timeout=60)


def test_ctrl_c_ends_a_worker_that_waits_for_the_others():
    with Cluster(timeout="600s") as cluster:
        worker = cluster.start_program(INTERRUPTED, 0, 2)
        wait_until(lambda: cluster.status()["jobs"], what="the job's first worker")
        worker.send_signal(signal.SIGINT)
        assert worker.communicate(timeout=60) == ("interrupted\n", "")
        wait_until(lambda: not cluster.status()["jobs"], what="the end of the job")


def test_a_daemon_that_drains_takes_no_new_jobs_and_the_running_one_ends_well():
    with Cluster(1) as cluster:
        end, at = Path(cluster.folder.name, "end"), f"--socket={cluster.socket(0)}"
        first = cluster.start_one(WAIT, 0, per_node=2, END=str(end))
        wait_until(lambda: cluster.status()["jobs"], what="the job's first worker")
        drain = subprocess.Popen([BUILD / "bin/deft", "drain", at], stdout=subprocess.PIPE, text=True)
        assert drain.stdout.readline() == "waiting for 1 jobs: default\n"
        second = cluster.start_one(WAIT, 1, per_node=2, END=str(end))  # a job that has begun may become complete
        wait_for_line(second, "here")
        [other] = cluster.start_without_session(REFUSED, DEFT_JOB="another")
        assert "the daemon takes no new jobs: it drains" in cluster.finish([other])[0]
        assert drain.poll() is None and cluster.status()["takes_jobs"] is False
        assert "takes no new jobs" in deft("status", at).stdout
        end.touch()
        cluster.finish([first, second])
        assert drain.wait(60) == 0 and drain.stdout.read().endswith("takes no new jobs; 0 run\n")
        assert deft("drain", "--undo", at).stdout.endswith("takes new jobs\n")
        cluster.finish(cluster.start(WAIT, END=str(end)))
        assert re.search(r"ended \d+ s ago: job default, well", deft("status", at).stdout)


MAKES_A_SET = """
say("here")
while not os.path.exists(os.environ["END"]):
    time.sleep(0.01)
further = deft.open(job="default.set1")
further.barrier("in the set")
further.close()
session.close()
"""


def test_a_running_job_may_make_process_sets_while_the_daemon_drains():
    with Cluster(1) as cluster:
        end, at = Path(cluster.folder.name, "end"), f"--socket={cluster.socket(0)}"
        workers = cluster.start(MAKES_A_SET, per_node=2, END=str(end))
        for worker in workers:
            wait_for_line(worker, "here")
        assert deft("drain", "--no-wait", at).returncode == 0
        end.touch()
        cluster.finish(workers)


def test_drain_without_a_daemon_says_so(tmp_path):
    done = deft("drain", f"--socket={tmp_path}/none")
    assert done.returncode == 1 and "no deftd answers" in done.stderr


@contextlib.contextmanager
def cluster_for_all_users():
    """A daemon that every user of the machine can reach; skips without root."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become another user")
    with Cluster(1) as cluster:
        os.chmod(cluster.folder.name, 0o755)
        os.chmod(cluster.socket(0), 0o666)
        yield cluster


def test_only_root_and_the_daemons_user_may_drain_it():
    with cluster_for_all_users() as cluster:
        words = ["setpriv", "--reuid=65534", "--clear-groups", BUILD / "bin/deft", "drain"]
        done = subprocess.run([*words, f"--socket={cluster.socket(0)}"], capture_output=True, text=True)
        assert done.returncode == 1 and "only root and the daemon's own user may drain it" in done.stderr
        assert cluster.status()["takes_jobs"] is True


def test_status_shows_a_user_his_own_jobs_and_root_all_of_them():
    with cluster_for_all_users() as cluster:
        end = Path(cluster.folder.name, "end")
        [worker] = cluster.start(WAIT, END=str(end), DEFT_JOB="of-root")
        wait_for_line(worker, "here")
        os.seteuid(NOBODY)
        try:
            client = Client(cluster.socket(0))
        finally:
            os.seteuid(0)
        with client:
            client.hello(job=b"of-nobody")
            assert client.receive()[0] == WELCOME
            assert {job["name"] for job in cluster.status()["jobs"]} == {"of-root", "of-nobody"}
            words = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", BUILD / "bin/deft", "status", "--json"]
            asked = [*words, f"--socket={cluster.socket(0)}"]
            his = json_of(subprocess.run(asked, capture_output=True, text=True))
        assert [job["name"] for job in his["jobs"]] == ["of-nobody"]
        assert {user["user"] for user in his["users"]} == {NOBODY} and "of-root" not in json.dumps(his)
        end.touch()
        cluster.finish([worker])


def test_jobs_that_do_not_end_after_a_stop_are_told():
    with Cluster(1, timeout="8s") as cluster:
        worker, other = cluster.start(STUBBORN, per_node=2)
        for one in (worker, other):
            wait_for_line(one, "here")
        begin = time.monotonic()
        cluster.daemons[0].send_signal(signal.SIGTERM)
        assert cluster.daemons[0].wait(60) == 0
        assert 8 <= time.monotonic() - begin < 40
        assert "was stopped" in worker.stdout.readline()


PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000


def stop_thread(pid: int, name: str) -> int:
    """Stops one thread of a process for good, as one that hangs in the kernel is stopped."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    # The oldest one: those that it starts inherit its name.
    thread = min(int(task.name) for task in tasks if (task / "comm").read_text().startswith(name))
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    if ptrace(PTRACE_SEIZE, thread, 0, 0) != 0:
        pytest.skip("this process may not trace another one")
    assert ptrace(PTRACE_INTERRUPT, thread, 0, 0) == 0
    assert os.waitpid(thread, WALL)[0] == thread
    return thread


def test_a_thread_that_hangs_does_not_keep_a_daemon_that_is_stopped(monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")  # as systemd does, which waits less long
    with Cluster(2, timeout="2s") as cluster:
        workers = cluster.start(WAIT, END="/nowhere/end")
        for worker in workers:
            wait_for_line(worker, "here")
        thread = stop_thread(cluster.daemons[0].pid, "link gloo")
        for worker in workers:
            worker.kill()
        wait_until(lambda: cluster.status()["jobs_closing"] == 1, what="the end of the job, whose thread hangs")
        cluster.daemons[0].send_signal(signal.SIGTERM)
        os.waitpid(thread, WALL)  # of its end, without which this process would keep it
        assert cluster.daemons[0].wait(60) == 1
        assert "a thread of a job hangs, and the daemon ends without it" in cluster.log(0)


def start_with(cluster: Cluster, text: str) -> Path:
    file = Path(cluster.folder.name, "deftd.conf")
    file.write_text(text)
    cluster.daemons.append(cluster.start_daemon(0, flag_file=str(file)))
    return file


def reloaded(cluster: Cluster, words: str) -> str:
    cluster.daemons[0].send_signal(signal.SIGHUP)
    wait_until(lambda: words in cluster.log(0), what=f"'{words}' in the log")
    return cluster.log(0)


def test_a_reload_changes_what_new_jobs_get_and_never_ends_anything():
    with Cluster(0) as cluster:
        cluster.nodes = 1
        cluster.listen = [cluster.address_to_listen_on(0)]
        file = start_with(cluster, "policy = p3\nmemory_limit = 1GB\n")
        end = Path(cluster.folder.name, "end")
        [worker] = cluster.start(WAIT, END=str(end), DEFT_JOB="before")
        wait_for_line(worker, "here")
        file.write_text("policy = bytescheduler\nmemory_limit = 2GB\n")
        log = reloaded(cluster, "new jobs get these settings: ")
        assert "policy=bytescheduler (file)" in log and "restart deftd for the new value of memory_limit" in log
        file.write_text("policy = bytescheduler\nmemory_limit = 1GB\ninsecure = on\nlog_format = json\n")
        log = reloaded(cluster, "restart deftd for the new value of insecure, log_format")
        assert "log_format=json" not in log, "new jobs do not get it"
        file.write_text("policy = none_such\n")
        reloaded(cluster, "the configuration stays as it was: ")
        file.write_text("compression = int9\n")
        reloaded(cluster, "int9")
        [other] = cluster.start(WAIT, END=str(end) + "2", DEFT_JOB="after")
        wait_for_line(other, "here")
        jobs = {job["name"]: job["policy"] for job in cluster.status()["jobs"]}
        assert jobs == {"before": "p3", "after": "bytescheduler"}
        assert cluster.status()["memory_limit_bytes"] == 1 << 30
        file.write_text("user_limits = sessions=2\n")  # as many as there are
        reloaded(cluster, "user_limits=sessions=2 (file)")
        refused = deft("status", f"--socket={cluster.socket(0)}")
        assert refused.returncode != 0 and "may have 2" in refused.stderr, refused.stderr
        file.write_text("user_limits = jobs=2,sessions=99\n")
        reloaded(cluster, "user_limits=jobs=2,sessions=99 (file)")
        [third] = cluster.start_without_session(REFUSED, DEFT_JOB="one too many")
        assert "raise jobs in the option user_limits" in cluster.finish([third])[0]
        for path in (str(end), str(end) + "2"):
            Path(path).touch()
        cluster.finish([worker, other])


WRONG = {
    "policy = fifoo\n": "did you mean fifo",
    "links = glooo:eth0\n": "glooo",
    "compression = int9\n": "int9",
    "link_costs = /nowhere\n": "/nowhere",
    "secret_file = /nowhere\n": "deft keygen",
    "listen = 192.0.2.1:29610\n": "192.0.2.1",
    "listen = 0.0.0.0:0\n": "no key guards it",
    "listen = 127.0.0.1:99999\n": "it is no host:port with a port up to 65535",
    "listen = 29610\n": "cannot listen on 29610: it is no host:port",
    "bucketing = uniform:1\n": "option bucketing: bucketing 'uniform:1' names no usable size",
    "merge_groups = odd:2\n": "merge_groups 'odd:2' is no way to group",
    "trace_steps = 9-3\n": "trace_steps is '9-3'",
    "flag_file = other.conf\n": "a flag file names no other one",
    f"socket = /tmp/{'s' * 150}\n": "has 155 characters",
    "metrics = 127.0.0.1\n": "DEFT_METRICS",
    "policy = fifo\nplan = 0-1@4\n": "plan",
    "user_limits = jobs=0\n": "jobs: 0 is out of range",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_configuration_is_found_before_the_daemon_is_started(tmp_path, text):
    file = tmp_path / "deftd.conf"
    file.write_text(text)
    done = deftd("--check-config", f"--flag-file={file}")
    assert done.returncode == 2 and WRONG[text] in done.stderr, done.stderr


def test_a_folder_is_no_flag_file(tmp_path):
    done = deftd("--check-config", f"--flag-file={tmp_path}")
    assert done.returncode == 2 and f"cannot read the flag file {tmp_path}" in done.stderr, done.stderr


def test_a_right_configuration_is_right_while_a_daemon_runs_with_it():
    with Cluster(1, metrics="127.0.0.1:0") as cluster:
        at = cluster.status()["metrics"]
        done = deftd("--check-config", f"--listen={cluster.listen[0]}", f"--metrics={at}", "--links=gloo:lo")
        assert done.returncode == 0 and "the configuration is right" in done.stdout, done.stderr


def test_a_parameter_server_does_not_end_by_a_hangup():
    words = [BUILD / "bin/deftd", "server", "--listen=127.0.0.1:0", "--ready-fd=1"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n"
    server.send_signal(signal.SIGHUP)
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=60) == 0


def test_a_parameter_server_is_healthy_as_soon_as_it_is_ready():
    words = [BUILD / "bin/deftd", "server", "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--ready-fd=1"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout.readline() == "ready\n"
        said = next(line for line in server.stderr if "metrics are on" in line)
        at = re.search(r"http://[^/]+", said)[0]
        with urllib.request.urlopen(f"{at}/healthz", timeout=60) as answer:  # a status of 503 is an exception
            assert answer.read() == b"ok\n"
        with urllib.request.urlopen(f"{at}/metrics", timeout=60) as answer:
            assert b"\ndeft_up 1\n" in answer.read()
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_the_unit_is_sandboxed():
    words = ["systemd-analyze", "security", "--offline=true", BUILD / "deploy/deftd.service"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("systemd-analyze is not installed")
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze knows no --offline")
    exposure = re.search(r"Overall exposure level for deftd.service: ([\d.]+)", done.stdout)
    assert exposure and float(exposure[1]) < 2.0, done.stdout + done.stderr
