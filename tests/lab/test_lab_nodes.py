import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from lab.netns import PAYLOAD_SHARE
from lab.rates import bits_per_second
from lab_commands import COMPARE, ROOT, processes_with, run_compare

pytestmark = pytest.mark.usefixtures("emulated", "fashion_mnist")


def lab_shell(script, *options, **more):
    return run_compare(*options, "--lab-shell", "sh", "-c", script, **more)


PROBE = f"{sys.executable} -I bench/lab/probe.py"


def transfer(by, to, address, size):
    """A shell's words: one plain TCP transfer, whose receiver prints the bytes a second."""
    return f"on {to} {PROBE} receive {address} & on {by} {PROBE} send {address} {size} && wait; "


def test_nodes_reach_each_other_on_every_nic_and_nothing_else():
    done = lab_shell(transfer(0, 1, "10.77.0.2", 1000000) + transfer(1, 0, "10.77.1.1", 1000000))
    assert [float(line) > 0 for line in done.stdout.splitlines() if line != "listening"] == [True, True], done.stderr
    outside = lab_shell("on 0 ip route get 192.0.2.1")
    assert outside.returncode != 0
    assert "unreachable" in outside.stderr


def test_a_node_sees_its_own_nics_and_cores():
    done = lab_shell("on 1 ip -br addr; on 0 nproc; on 1 taskset -cp $$", "--nics", "3")
    assert [line.split()[0].split("@")[0] for line in done.stdout.splitlines()[:4]] == ["lo", "eth0", "eth1", "eth2"]
    assert int(done.stdout.splitlines()[4]) == max(1, len(os.sched_getaffinity(0)) // 2)


CONTROL_OF_A_CONNECTION = """
import socket, sys, time
place = (sys.argv[2], 29591)
if sys.argv[1] == "accept":
    end, _ = socket.create_server(place).accept()
else:
    for _ in range(1500):  # until the other listens
        end = socket.socket()
        if end.connect_ex(place) == 0:
            break
        time.sleep(0.02)
print(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
"""


def test_tcp_is_the_same_in_all_nodes_whatever_the_machine_uses(tmp_path):
    script = tmp_path / "control.py"
    script.write_text(CONTROL_OF_A_CONNECTION)
    end = f"{sys.executable} -I {script}"
    done = lab_shell(f"on 1 {end} accept 10.77.1.2 & on 0 {end} connect 10.77.1.2 && wait")
    wanted = "cubic" if "cubic" in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text() else "reno"
    assert done.stdout.split() == [wanted, wanted], done.stderr


def test_the_exit_status_is_the_commands():
    assert lab_shell("exit 7").returncode == 7


@pytest.mark.parametrize("rate", ["60mbit", "400mbit"])
def test_a_nic_keeps_to_its_rate_both_ways(rate):
    size = 3_000_000 if rate == "60mbit" else 20_000_000
    script = "".join(transfer(by, to, f"10.77.0.{to + 1}", size) for by, to in ((0, 1), (1, 0)))
    wanted = bits_per_second(rate) * PAYLOAD_SHARE
    most = [0.0, 0.0]  # of what each direction got
    for _ in range(8):  # on a busy machine a transfer may be too slow, but no transfer may be too fast
        done = lab_shell(script, "--rate", rate)
        got = [8 * float(line) for line in done.stdout.splitlines() if line != "listening"]
        assert len(got) == 2, done.stderr
        most = [max(pair) for pair in zip(most, got, strict=True)]
        assert max(most) < 1.07 * wanted, f"{got} of {wanted} bit/s"
        if min(most) > 0.9 * wanted:
            return
    pytest.fail(f"{most} of {wanted} bit/s")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_lab_is_killed(number):
    mark = f"LAB_TEST_MARK={os.getpid()}.{number}"
    command = [sys.executable, COMPARE, "--lab-shell", "sh", "-c", "on 0 sleep 100 & on 1 sleep 100 & echo up; wait"]
    environment = {**os.environ, **dict([mark.split("=")])}
    lab = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
    try:
        assert lab.stdout.readline() == b"up\n"
        assert len(processes_with(mark)) >= 3
        lab.send_signal(number)
        lab.wait(60)
        deadline = time.monotonic() + 60
        while (left := processes_with(mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
    finally:
        lab.stdout.close()
        lab.kill()


@pytest.mark.parametrize(
    ("number", "more"), [(signal.SIGTERM, ()), (signal.SIGKILL, ()), (signal.SIGTERM, ("--loopback",))]
)
def test_no_file_is_left_when_a_comparison_is_killed(tmp_path, number, more):
    mark = f"LAB_TEST_MARK={os.getpid()}.{number}.{len(more)}"
    environment = {**os.environ, **dict([mark.split("=")]), "TMPDIR": str(tmp_path)}
    command = [sys.executable, COMPARE, "--model", "mlp", "--schemes", "compute", "--steps", "1000000", *more]
    comparison = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, cwd=ROOT, text=True)
    try:
        assert any(line.startswith("starting compute") for line in comparison.stderr)
        comparison.send_signal(number)
        comparison.wait(60)
        deadline = time.monotonic() + 60
        while processes_with(mark) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert list(tmp_path.glob("deft-*")) == []
    finally:
        comparison.kill()
        comparison.stderr.close()


WRONG_RATE = """
import sys
sys.path.insert(0, "bench")
from lab import netns
if not netns.inside():
    sys.exit(netns.enter([sys.executable, *sys.argv]))
with netns.Lab(nodes=2, nics=1) as lab:
    try:
        lab.shape(["4bit"])
    except netns.CommandFailed as failure:
        print(failure)
"""


def test_a_rate_that_tc_refuses_does_not_mean_that_there_are_no_nodes(tmp_path):
    script = tmp_path / "rate.py"
    script.write_text(WRONG_RATE)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout.startswith("tc qdisc replace"), done.stderr


def test_the_machine_keeps_no_namespace_and_no_interface():
    def networks():
        names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        return names, sorted(os.listdir("/sys/class/net"))

    before = networks()
    assert lab_shell("on 0 true").returncode == 0
    assert networks() == before


USER_SCRIPT = """
import os, subprocess, sys
sys.path.insert(0, "bench")
from lab import netns
if not netns.inside():
    print(os.getuid(), flush=True)
    sys.exit(netns.enter([sys.executable, *sys.argv]))
with netns.Lab(nodes=2, nics=2) as lab:
    lab.shape(["100mbit", "50mbit"])
    probe = [sys.executable, "-I", "bench/lab/probe.py"]
    receiver = lab.start(0, [*probe, "receive", lab.address(0, 1)], stdout=subprocess.PIPE)
    receiver.stdout.readline()
    lab.start(1, [*probe, "send", lab.address(0, 1), "3000000"])
    sys.exit(0 if float(receiver.stdout.readline()) > 0 else 1)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become an ordinary user")
def test_an_ordinary_user_gets_the_same_lab():
    nobody = pwd.getpwnam("nobody")
    script = Path(tempfile.gettempdir()) / f"lab-user-{os.getpid()}.py"  # pytest's own folders are root's alone
    script.write_text(USER_SCRIPT)
    script.chmod(0o644)
    become = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    try:
        done = subprocess.run([*become, "/usr/bin/python3", script], capture_output=True, text=True, cwd=ROOT)
    finally:
        script.unlink()
    if "No module named" in done.stderr or "ermission denied" in done.stderr.splitlines()[:1]:
        pytest.skip("another user may not read this checkout")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{nobody.pw_uid}\n")
