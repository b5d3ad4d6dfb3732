"""What a daemon says when it starts, to its log and to systemd."""

import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from cluster import BUILD, clean_environment, free_port


def start(folder: Path, *flags: str, **variables: str) -> subprocess.Popen:
    reader, writer = os.pipe()
    words = [BUILD / "bin/deftd", f"--socket={folder}/d.sock", f"--listen=127.0.0.1:{free_port('127.0.0.1')}"]
    process = subprocess.Popen(
        [*words, f"--ready-fd={writer}", *flags],
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[writer],
        env=clean_environment() | variables,
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


@pytest.mark.parametrize(("level", "logged"), [("info", True), ("debug", True), ("warning", False), ("error", False)])
def test_the_log_level_decides_what_is_logged(tmp_path, level, logged):
    lines = log_of(start(tmp_path, f"--log-level={level}"))
    assert any("is ready on" in line for line in lines) == logged, lines


def test_systemd_hears_when_the_daemon_is_usable_when_it_lives_and_when_it_stops(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"{tmp_path}/notify")
        systemd.settimeout(30)
        process = start(tmp_path, NOTIFY_SOCKET=f"{tmp_path}/notify", WATCHDOG_USEC="200000")
        heard = [systemd.recv(4096).decode() for _ in range(4)]
        assert heard == ["READY=1", "WATCHDOG=1", "WATCHDOG=1", "WATCHDOG=1"]
        log_of(process)
        systemd.settimeout(0.1)
        while "STOPPING=1" not in heard:
            heard.append(systemd.recv(4096).decode())


def test_a_parameter_server_is_a_subcommand(tmp_path):
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    server = subprocess.Popen(
        [BUILD / "bin/deftd", "server", f"--listen={address}", "--ready-fd=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=clean_environment(),
    )
    assert server.stdout.readline() == "ready\n"
    host, port = address.split(":")
    socket.create_connection((host, int(port)), timeout=10).close()
    server.send_signal(signal.SIGTERM)
    assert server.wait(timeout=30) == 0


@pytest.mark.parametrize("wrong", ["--ready-fd=many", "--ready-fd", "--ready-fd=-1"])
def test_a_descriptor_that_is_none_is_wrong_usage(tmp_path, wrong):
    done = subprocess.run([BUILD / "bin/deftd", wrong], capture_output=True, text=True, env=clean_environment())
    assert done.returncode == 2 and "is no descriptor" in done.stderr
