"""What a daemon says when it starts, to its log and to systemd."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from cluster import BUILD, Cluster, free_port, wait_until


def start(folder: Path, *flags: str, **variables: str) -> subprocess.Popen:
    reader, writer = os.pipe()
    words = [BUILD / "bin/deftd", f"--socket={folder}/d.sock", f"--listen=127.0.0.1:{free_port('127.0.0.1')}"]
    process = subprocess.Popen(
        [*words, f"--ready-fd={writer}", *flags],
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[writer],
        env=os.environ | variables,
    )
    os.close(writer)
    with os.fdopen(reader) as ready:
        assert ready.readline() == "ready\n"
    return process


def log_of(process: subprocess.Popen) -> list[str]:
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate(timeout=30)
    assert process.returncode == 0, text
    return text.splitlines()


def test_the_first_line_of_the_log_tells_what_was_set_and_where(tmp_path):
    file = tmp_path / "deftd.conf"
    file.write_text("bucket_bytes = 5MB\n")
    lines = log_of(start(tmp_path, f"--flag-file={file}", "--timeout=7s", DEFT_POLICY="p3"))
    assert re.search(rf"deftd \S+ is ready on {tmp_path}/d\.sock and 127\.0\.0\.1:\d+; settings: ", lines[0]), lines
    for setting in ("policy=p3 (variable)", "bucket_bytes=5MB (file)", "timeout=7s (flag)"):
        assert setting in lines[0]
    assert "credit_bytes" not in lines[0]


def test_the_table_of_open_files_does_not_grow_while_the_daemon_serves(tmp_path):
    process = start(tmp_path)
    status = dict(line.split(":\t") for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0]
    log_of(process)
    assert int(status["FDSize"]) >= min(most, 65536), status["FDSize"]


@pytest.mark.parametrize(("level", "logged"), [("info", True), ("debug", True), ("warning", False), ("error", False)])
def test_the_log_level_decides_what_is_logged(tmp_path, level, logged):
    lines = log_of(start(tmp_path, f"--log-level={level}"))
    assert any("is ready on" in line for line in lines) == logged, lines


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_text_with_line_breaks_forges_no_line_of_the_log(form):
    forged = "/nowhere\nI20260101 00:00:00.000000 1 main.cc:1] forged\r\nb"
    name = "resnet] the job failed"
    with Cluster(1, log_format=form, trace=forged) as cluster:
        errors = cluster.start_without_session("try: deft.open().close()\nexcept deft.DeftError: pass", DEFT_JOB=name)
        cluster.finish(errors)
        wait_until(lambda: "resnet" in cluster.log(0), what="the job in the log")
        lines = cluster.log(0).split("\n")[:-1]
    assert any("forged" in line for line in lines)
    if form == "text":
        assert all(re.match(r"[IWE]2\d{7} [\d:.]+ +\d+ \w+\.cc:\d+\] ", line) for line in lines), lines
        assert not any(line.startswith("I20260101 00") for line in lines)
        return
    events = [json.loads(line) for line in lines]
    assert {"time", "level", "message", "source", "thread"} <= set(events[0]) and "is ready on" in events[0]["message"]
    assert forged in events[0]["message"]
    assert any(event.get("job") == name and event.get("rank") == 0 and event["level"] == "info" for event in events)
    assert not any(event.get("job") == "resnet" for event in events), "a name is no message"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{6}Z", events[0]["time"])


def test_systemd_hears_when_the_daemon_is_usable_when_it_lives_and_when_it_stops(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"{tmp_path}/notify")
        systemd.settimeout(30)
        process = start(tmp_path, NOTIFY_SOCKET=f"{tmp_path}/notify", WATCHDOG_USEC="200000")
        heard: list[str] = []

        def listen() -> None:  # all the time, as systemd does: a daemon whose words nobody takes waits
            while not heard or not heard[-1].startswith("STOPPING=1"):
                heard.append(systemd.recv(4096).decode())

        listener = threading.Thread(target=listen)
        listener.start()
        wait_until(lambda: len(heard) >= 4, what="three signs of life")
        log_of(process)
        listener.join()
    assert heard[:4] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]
    assert heard[-1] == "STOPPING=1\nEXTEND_TIMEOUT_USEC=40000000"  # the timeout, at most 30 s, and some more


@pytest.mark.parametrize("server", [["server"], []])
def test_localhost_is_an_address_to_listen_on_and_one_of_ipv6_is_not(tmp_path, server):
    words = [BUILD / "bin/deftd", *server, f"--socket={tmp_path}/d.sock", "--ready-fd=1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    port = free_port("127.0.0.1")
    with subprocess.Popen([*words, f"--listen=localhost:{port}"], **pipes) as daemon:
        assert daemon.stdout.readline() == "ready\n"
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        daemon.terminate()
    done = subprocess.run([*words, "--listen=[::1]:0"], **pipes, timeout=60)
    assert done.returncode == 1 and "cannot listen on [::1]:0: " in done.stderr and "IPv4 only" in done.stderr


def test_a_parameter_server_is_a_subcommand(tmp_path):
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    server = subprocess.Popen(
        [BUILD / "bin/deftd", "server", f"--listen={address}", "--ready-fd=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout.readline() == "ready\n"
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=10).close()
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0


def test_a_port_that_others_reach_needs_a_key_or_a_word(tmp_path):
    words = [BUILD / "bin/deftd", "server", f"--listen=0.0.0.0:{free_port('127.0.0.1')}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "other machines reach the parameter server 0.0.0.0:" in done.stderr
    words = [BUILD / "bin/deftd", f"--socket={tmp_path}/d.sock", f"--listen=0.0.0.0:{free_port('127.0.0.1')}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "other machines reach the control port 0.0.0.0:" in done.stderr
    assert "--secret-file" in done.stderr and "--insecure=on" in done.stderr
    lines = log_of(start(tmp_path, words[2], "--insecure=on"))
    assert any("no key guards it (insecure=on)" in line for line in lines)
    key = tmp_path / "key"
    key.write_text(subprocess.run([BUILD / "bin/deft", "keygen"], capture_output=True, text=True).stdout)
    key.chmod(0o604)
    lines = log_of(start(tmp_path, words[2], f"--secret-file={key}"))
    assert not any("no key guards it" in line for line in lines)
    assert any("can be read by everyone" in line for line in lines)
    key.chmod(0o400)
    assert not any("can be read by" in line for line in log_of(start(tmp_path, words[2], f"--secret-file={key}")))


@pytest.mark.parametrize("wrong", ["--ready-fd=many", "--ready-fd", "--ready-fd=-1"])
def test_a_descriptor_that_is_none_is_wrong_usage(tmp_path, wrong):
    done = subprocess.run([BUILD / "bin/deftd", wrong], capture_output=True, text=True)
    assert done.returncode == 2 and "is no descriptor" in done.stderr
