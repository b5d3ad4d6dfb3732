"""The command `deft`: what it prints and how it ends."""

import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import threading
from pathlib import Path

import pytest
from cluster import deft, json_of
from ports import free_port
from under_test import BUILD

ROOT = Path(__file__).resolve().parents[2]
BIN = BUILD / "bin"
VGG = ROOT / "examples/profiles/vgg19_deft_table2.json"
HAS_MPI = (BIN / "deft-mpi").exists()
VERSION = re.search(r"project\(deft VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


@pytest.fixture(autouse=True)
def no_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("DEFT_SOCKET", str(tmp_path / "deftd.sock"))
    return tmp_path / "deftd.sock"


@pytest.fixture
def daemon(no_daemon):
    words = [BIN / "deftd", f"--listen=127.0.0.1:{free_port()}", "--ready-fd=1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n", process.communicate()
    yield process
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def finding(name: str, *words: str) -> dict:
    return next(row for row in json_of(deft("doctor", "--json", *words)) if row["check"] == name)


# --- status


def test_status_without_a_daemon_names_the_socket(no_daemon):
    result = deft("status")
    assert result.returncode == 1
    assert str(no_daemon) in result.stderr
    assert "deftrun" in result.stderr


def test_a_daemon_that_deftrun_has_started_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("DEFT_SOCKET")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "none"))
    for name in ("deftrun-gone", "deftrun-here"):
        (tmp_path / name).mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "deftrun-here/deftd.sock"))
        listener.listen()
        for words in (["status"], ["trace", "dump"]):
            complaint = deft(*words).stderr
            assert f"set DEFT_SOCKET={tmp_path}/deftrun-here/deftd.sock" in complaint
            assert "deftrun-gone" not in complaint


def test_status_of_an_idle_daemon(daemon):
    result = deft("status")
    assert result.returncode == 0
    assert result.stdout.startswith(f"deftd {VERSION}, pid {daemon.pid}, at ")
    assert "no job" in result.stdout


def test_status_as_json(daemon):
    status = json_of(deft("status", "--json"))
    assert status["pid"] == daemon.pid
    assert status["jobs"] == []


def fake_daemon(path: Path, packets: list[bytes]) -> None:
    """Answers one client's first message with these packets."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        client, _ = listener.accept()
        client.recv(8192)
        for packet in packets:
            client.send(packet)
        client.close()
        listener.close()

    threading.Thread(target=serve, daemon=True).start()


def text_packet(text: str, last: bool, version: int = 7) -> bytes:
    body = text.encode() + b"\0"
    return struct.pack("<IIIIII", 0x54464544, 12, 24 + len(body), version, int(last), 0) + body


def test_a_long_status_comes_in_pieces(no_daemon):
    job = {
        "name": "mnist",
        "state": "running",
        "policy": "fifo",
        "compression": "int8",
        "world": 2,
        "node": 0,
        "nodes": 2,
        "leads": True,
        "workers": [
            {"rank": 0, "pid": 41, "attached": True, "steps": 10, "compute_us": 351234.0, "waited_us": 1050000},
            {"rank": 1, "pid": 42, "attached": False},
        ],
        "links": [{"name": "gloo:eth0", "open": True, "parts": 7, "busy_us": 1500000, "waiting": 2}],
        "groups": [{"id": 0, "tensors": 12, "buckets": 3, "bytes": 17500000, "step": 9}],
        "leader": {
            "nodes": [{"host": "a", "ranks": [0], "step_us": 351234.0}, {"host": "b", "ranks": [1], "step_us": 0}],
            "codecs": [
                {"codec": "bf16", "encode_us_per_mb": 90.0, "decode_us_per_mb": 60, "slowdown": 1, "measured": False},
                {"codec": "int8", "encode_us_per_mb": 1500, "decode_us_per_mb": 800.0, "slowdown": 5, "measured": True},
                {
                    "codec": "int4",
                    "encode_us_per_mb": 2000,
                    "decode_us_per_mb": 900.0,
                    "slowdown": 5,
                    "measured": False,
                },
            ],
            "preserver": [{"group": 0}, {"group": 1, "codecs": "exact gradients did not help, so int4 comes back"}],
        },
        "stalls": [{"rank": 1, "owes": "layer4.conv2", "step": 9, "age_ms": 61000}],
    }
    for codec in job["leader"]["codecs"][1:]:
        codec["node"] = 1
    job["links"][0] |= {"bytes": 3 << 20, "wire_bytes": 800 << 10}
    text = json.dumps({"version": "9.9", "pid": 1, "jobs": [job]})
    fake_daemon(no_daemon, [text_packet(text[:100], False), text_packet(text[100:], True)])
    out = deft("status").stdout
    assert "job mnist: running, policy fifo, compression int8, world 2, node 0 of 2 (leads)" in out
    assert re.search(r"0 +41 +attached +10 +351.2 ms +105.0 ms$", out, re.MULTILINE)
    assert re.search(r"1 +42 +gone +- +- +-$", out, re.MULTILINE)
    assert re.search(r"gloo:eth0 +open +7 +3.0 MB +800.0 KB +1.5 s +2", out)
    assert re.search(r"a +\[0\] +351.2 ms", out)
    assert not re.search(r"^ *b +\[1\]", out, re.MULTILINE), "nothing is known of its steps yet"
    assert re.search(r"bf16 +0.09 ms +0.06 ms +1.00 +no node yet$", out, re.MULTILINE)
    assert re.search(r"int8 +1.50 ms +0.80 ms +5.00 +node 1, b$", out, re.MULTILINE)
    assert re.search(r"int4 +2.00 ms +0.90 ms +5.00 +node 1, b, by its other codecs$", out, re.MULTILINE)
    assert re.findall(r"codecs of group (\d): (.*)", out) == [("1", "exact gradients did not help, so int4 comes back")]
    assert "stalled: rank 1 owes 'layer4.conv2' of step 9; others have waited 61.0 s" in out


@pytest.mark.parametrize(
    ("leader", "said"),
    [
        ({"leader": {"policies_in_force": ["fifo"]}}, "policy fifo, world 2"),
        ({"leader": {"policies_in_force": ["p3", "fifo"]}}, "policy p3 and fifo (configured: fifo), world 2"),
        ({}, "configured policy fifo, world 2"),  # only the leader knows which one is in force
    ],
)
def test_status_tells_the_policy_in_force(no_daemon, leader, said):
    job = {"name": "mnist", "state": "running", "policy": "fifo", "world": 2, "node": 0, "nodes": 2} | leader
    fake_daemon(no_daemon, [text_packet(json.dumps({"version": "9.9", "pid": 1, "jobs": [job]}), True)])
    assert f"job mnist: running, {said}" in deft("status").stdout


@pytest.mark.parametrize(
    ("packets", "says"),
    [
        ([], "closed the connection"),
        ([text_packet("{", True)], "no JSON object"),
        ([text_packet("{}", True, version=99)], "protocol version 99, this one 7"),
        ([b"rubbish that is no message"], "not Deft's"),
    ],
)
def test_a_bad_answer_is_an_error(no_daemon, packets, says):
    fake_daemon(no_daemon, packets)
    result = deft("status")
    assert result.returncode == 1
    assert says in result.stderr


# --- doctor


def test_doctor_tells_each_check_in_a_line():
    result = deft("doctor")
    assert result.returncode == 0, result.stdout
    subjects = {line[6:19].strip() for line in result.stdout.splitlines() if line.startswith(("ok", "warn", "fail"))}
    wanted = {"version", "daemon", "NICs", "links", "shared memory", "pidfd", "memory", "memlock", "TCP", "python"}
    assert wanted <= subjects


def test_doctor_finds_the_daemon(daemon):
    assert finding("daemon")["health"] == "ok"


def test_doctor_tells_programs_of_a_path_that_is_no_utf8(monkeypatch):
    monkeypatch.setenv("DEFT_TRACE", os.fsdecode(b"/caf\xe9"))
    assert "trace=/caf\ufffd (variable)" in finding("options")["found"]


def test_doctor_warns_without_a_daemon():
    found = finding("daemon")
    assert found["health"] == "warn"
    assert "deftrun" in found["fix"]


def test_doctor_fails_on_a_daemon_of_another_version(no_daemon):
    fake_daemon(no_daemon, [text_packet(json.dumps({"version": "0.0.1", "jobs": []}), True)])
    found = finding("daemon")
    assert found["health"] == "fail"
    assert "0.0.1" in found["found"] and VERSION in found["found"]


def test_doctor_fails_on_a_nic_that_does_not_exist():
    result = deft("doctor", "--links", "gloo:nic9")
    assert result.returncode == 1
    found = finding("links", "--links", "gloo:nic9")
    assert found["health"] == "fail"
    assert "no network interface 'nic9'; there are: lo" in found["found"]


def test_doctor_names_what_links_resolve_to():
    assert "gloo:lo (127.0.0.1)" in finding("links", "--links", "gloo:lo")["found"]


def test_doctor_says_which_backends_this_build_has_and_refuses_the_others():
    built = {link["name"]: link["here"] for link in json_of(deft("check-build", "--json"))["links"]}
    here, _, missing = finding("backends")["found"].partition("; not in this build: ")
    assert here.split(", ") == [name for name, is_built in built.items() if is_built]
    assert all(name in missing for name, is_built in built.items() if not is_built)
    for name in (name for name, is_built in built.items() if not is_built):
        found = finding("links", "--links", name)
        assert found["health"] == "fail"
        assert f"the link backend '{name}' is not in this build" in found["found"]


def test_doctor_asks_the_parameter_servers():
    found = finding("server", "--links", "ps:127.0.0.1:1")
    assert found["health"] == "fail"
    assert "no parameter server answers at 127.0.0.1:1" in found["found"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert finding("server", "--links", f"ps:127.0.0.1:{listener.getsockname()[1]}")["health"] == "ok"


def test_doctor_says_which_links_cannot_encrypt(tmp_path):
    key = tmp_path / "key"
    key.write_text(deft("keygen").stdout)
    key.chmod(0o600)
    with_key = ["--secret-file", str(key)]
    for links, words, health, text in (
        ("gloo:lo", with_key, "ok", "all links encrypt"),
        ("gloo:lo", [], "warn", "only jobs of one machine"),
        ("gloo:lo,ps:127.0.0.1:1", [], "fail", "without a key, ps links cannot encrypt"),
        ("gloo:lo,mpi:lo", with_key, "fail", "mpi:lo cannot encrypt"),
    ):
        found = finding("encryption", "--links", links, "--encrypt-gradients", "on", *words)
        assert found["health"] == health and text in found["found"], found


def test_doctor_checks_the_secret(tmp_path):
    key = tmp_path / "key"
    key.write_text("short")
    assert finding("secret", "--secret-file", str(key))["health"] == "fail"
    key.write_text(deft("keygen").stdout)
    for mode, readers in ((0o644, "everyone"), (0o640, "the group ")):
        key.chmod(mode)
        found = finding("secret", "--secret-file", str(key))
        assert found["health"] == "warn" and f"can be read by {readers}" in found["found"]
    key.chmod(0o600)
    assert finding("secret", "--secret-file", str(key))["health"] == "ok"
    unreadable = finding("secret", "--secret-file", f"{key}/inside")  # root may read everything that is a file
    assert unreadable["health"] == "fail" and "Not a directory" in unreadable["found"]
    assert "keygen" not in unreadable["fix"], "that would replace the key"


@pytest.mark.parametrize(("control", "health"), [("reno", "ok"), ("bbr", "warn")])
def test_doctor_looks_at_tcps_congestion_control(control, health):
    script = f'echo {control} > /proc/sys/net/ipv4/tcp_congestion_control || exit 77; exec "$0" doctor --json'
    done = subprocess.run(["unshare", "-Urn", "sh", "-c", script, BIN / "deft"], capture_output=True, text=True)
    is_forbidden = re.search("unshare.*(not permitted|denied|No space)", done.stderr)  # by the kernel, or its limits
    if done.returncode == 77 or is_forbidden:
        pytest.skip(f"no network namespace with {control}: {done.stderr.strip()}")
    found = next(row for row in json_of(done) if row["check"] == "TCP")
    assert (found["health"], control in found["found"]) == (health, True)


def test_doctor_imports_the_python_package():
    found = finding("python")
    assert found["health"] == "ok", found
    assert VERSION in found["found"]


@pytest.mark.skipif(not HAS_MPI, reason="this build has no MPI links")
def test_doctor_says_which_mpi_it_finds_and_why_it_cannot_use_it(tmp_path):
    found = finding("MPI")
    assert found["health"] == "ok" and found["found"].startswith("Open MPI v"), found
    alone = tmp_path / "deft"
    shutil.copy(BIN / "deft", alone)
    rows = json_of(subprocess.run([alone, "doctor", "--json"], capture_output=True, text=True))
    found = next(row for row in rows if row["check"] == "MPI")
    assert found["health"] == "warn" and f"there is no program deft-mpi in {tmp_path}" in found["found"], found


# --- the rest


def test_check_build_names_links_policies_and_plugins():
    build = json_of(deft("check-build", "--json"))
    here = {link["name"]: link["here"] for link in build["links"]}
    assert set(here) == {"gloo", "ps", "mpi", "nccl", "tcp"}
    assert here["gloo"] and here["ps"] and here["tcp"] and here["mpi"] == HAS_MPI
    assert all(link["why"] for link in build["links"])
    assert {"fifo", "bytescheduler"} <= set(build["policies"])
    here = {plugin["name"]: plugin["here"] for plugin in build["plugins"]}
    assert next(iter(here)) == "python (deft)"
    for name, folder in (("pytorch", "torch"), ("tensorflow", "tensorflow"), ("mxnet", "mxnet")):
        assert here[f"{name} (deft.{folder})"] == (BUILD / "python/deft" / folder / "__init__.py").exists()
    assert here["pytorch (deft.torch)"] and here["tensorflow (deft.tensorflow)"]
    assert "[X] gloo" in deft("check-build").stdout


@pytest.mark.skipif(not HAS_MPI, reason="this build has no MPI links")
def test_check_build_does_not_promise_mpi_links_without_their_program(tmp_path):
    alone = tmp_path / "deft"
    shutil.copy(BIN / "deft", alone)
    shown = subprocess.run([alone, "check-build", "--json"], capture_output=True, text=True)
    (mpi,) = (link for link in json_of(shown)["links"] if link["name"] == "mpi")
    assert not mpi["here"] and mpi["why"] == f"there is no program deft-mpi in {tmp_path}"


def test_keygen_makes_a_new_key_each_time():
    keys = {deft("keygen").stdout for _ in range(2)}
    assert len(keys) == 2
    assert all(len(key.strip()) == 40 for key in keys)


def test_the_documented_options_are_the_real_ones():
    text = (ROOT / "docs/configuration.md").read_text()
    table = re.search(r"<!-- options: begin -->\n(.*)<!-- options: end -->", text, re.DOTALL)[1]
    assert table == deft("options", "--markdown").stdout, "write the table anew: deft options --markdown"


def test_options_as_json_and_text():
    names = {option["name"] for option in json_of(deft("options", "--json"))}
    assert {"policy", "links", "timeout"} <= names
    assert "--policy  (DEFT_POLICY, default auto)" in deft("options").stdout


def test_options_that_are_given_are_told_as_daemons_and_workers_read_them(tmp_path, monkeypatch):
    file = tmp_path / "flags"
    file.write_text("links = gloo:lo  # not this\njob-token=a=b\njob = of the file\npolicy =\n")
    monkeypatch.setenv("DEFT_FLAG_FILE", str(file))
    monkeypatch.setenv("DEFT_JOB", "of the variable")
    monkeypatch.setenv("DEFT_TIMEOUT", " ")
    monkeypatch.setenv("DEFT_RANK", "1")
    given = json_of(deft("options", "--given"))
    del given["flag_file"], given["socket"]
    assert given == {"job": "of the variable", "job_token": "a=b", "links": "gloo:lo", "policy": "auto"}
    monkeypatch.setenv("DEFT_FLAG_FILE", str(tmp_path / "nowhere"))
    refused = deft("options", "--given")
    assert (refused.returncode, refused.stdout) == (2, "") and "cannot read the flag file" in refused.stderr


def test_version():
    assert deft("--version").stdout == f"deft {VERSION}\n"
    shown = subprocess.run([BIN / "deftd", "--version"], capture_output=True, text=True).stdout
    assert shown == f"deftd {VERSION}\n"


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        ([], 2, "usage: deft COMMAND"),
        (["--help"], 0, ""),
        (["status", "--help"], 0, ""),
        (["doctor", "--json", "--help"], 0, ""),
        (["nothing"], 2, "unknown command 'nothing' (see deft --help)"),
        (["exlpain", "/tmp"], 2, "unknown command 'exlpain' (did you mean explain?)"),
        (["status", "--jason"], 2, "unknown option --jason"),
        (["status", "--wait"], 2, "--wait is ''"),
        (["status", "--wait=soon", "--json"], 2, "--wait is 'soon'"),
        (["status", "--socket", "x" * 200], 2, "200 characters"),
        (["keygen", "now"], 2, "unexpected argument 'now'"),
        (["doctor", "--timeout=soon"], 2, "'soon' is not a duration"),
        (["simulate"], 2, "deft simulate: no profile is given"),
        (["simulate", "/nowhere.json"], 2, "deft simulate: cannot read the profile /nowhere.json"),
        (["simulate", VGG, "--policy", "nope"], 2, "--policy: 'nope' is none of all fifo"),
        (["simulate", VGG, "--policy", "knapsak"], 2, "(did you mean knapsack?)"),
        (["simulate", VGG, "--bucketin=ddp"], 2, "unknown flag --bucketin (did you mean --bucketing?)"),
        (["explain", "/tmp", "--html"], 2, "--html needs the name of a file"),
        (["replay", "/tmp", "--policy", "slowest"], 2, "--policy: 'slowest' is none of all fifo"),
        (["replay", "/tmp", "--policy", "fast"], 2, "--policy: 'fast' is none of all fifo"),
        (["replay", "/tmp", "--policy", "fif"], 2, "(did you mean fifo?)"),
        (["optimize", "/tmp", "--policy", "prophets"], 2, "(did you mean prophet?)"),
        (["replay", "/tmp", "--batch", "0x"], 2, "how many times as large"),
        (["optimize", "/tmp", "--budget", "0s"], 2, "--budget is '0s'"),
        (["trace", "merge", "--help"], 0, ""),
    ],
)
def test_exit_statuses(words, status, says):
    result = deft(*words)
    assert result.returncode == status
    assert says in result.stderr


@pytest.mark.parametrize("words", [["keygen"], ["options", "--json"], ["--help"]])
def test_output_that_cannot_be_written_is_an_error(words):
    with open("/dev/full", "w") as full:
        result = subprocess.run([BIN / "deft", *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr.startswith("deft: cannot write the output")


def test_a_folder_that_is_gone_is_an_error(tmp_path):
    script = f'cd "$1" && rmdir "$1" && exec {BIN}/deft trace start traces'
    result = subprocess.run(["sh", "-c", script, "sh", tmp_path], capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert "No such file or directory" in result.stderr


def test_a_mistyped_variable_is_an_error_with_a_suggestion(monkeypatch):
    monkeypatch.setenv("DEFT_POLICIE", "fifo")
    result = deft("doctor")
    assert result.returncode == 2
    assert "did you mean DEFT_POLICY?" in result.stderr


def test_the_socket_is_for_owner_and_group_alone(daemon, no_daemon):
    assert stat.S_IMODE(no_daemon.stat().st_mode) == 0o660
