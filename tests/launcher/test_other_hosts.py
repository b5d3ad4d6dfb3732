"""deftrun on other hosts: an `ssh` that runs its command here stands for them."""

import os
import subprocess

import pytest
from launched import (
    BIN,
    SHOW,
    deftrun,
    last_block,
    own_temp,  # noqa: F401  (each run has a temporary folder of its own)
    rows,
    shared_daemon,
)


@pytest.fixture
def fake_ssh(tmp_path, monkeypatch):
    """An `ssh` that runs the command here; hosts named `missing` do not resolve."""
    folder = tmp_path / "bin"
    folder.mkdir()
    script = folder / "ssh"
    script.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >>{tmp_path}/ssh.log\n'
        'while [ "${1#-}" != "$1" ]; do shift 2; done\n'
        "host=$1; shift\n"
        '[ "$host" = missing ] && { echo "ssh: Could not resolve hostname missing" >&2; exit 255; }\n'
        'unset COLOUR; exec sh -c "$*"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path / "ssh.log"


def test_workers_start_on_other_hosts(fake_ssh, monkeypatch):
    monkeypatch.setenv("COLOUR", "green")
    script = SHOW + "\necho colour=$COLOUR >&2"
    result = deftrun("-np", "3", "-H", "127.0.0.2:2,127.0.0.3:2", "-x", "COLOUR", "sh", "-c", script)
    assert result.returncode == 0, result.stderr
    assert [(r["r"], r["lr"], r["ls"]) for r in rows(result)] == [("0", "0", "2"), ("1", "1", "2"), ("2", "0", "1")]
    assert sorted(result.stderr.splitlines()) == [f"[{i}] colour=green" for i in range(3)]
    assert "BatchMode=yes" in fake_ssh.read_text()


def test_the_leader_may_be_on_another_host_than_the_launcher(fake_ssh, monkeypatch):
    monkeypatch.setenv("SSH_CONNECTION", "127.0.0.1 40000 127.0.0.2 22")  # as sshd says it there
    result = deftrun("-H", "127.0.0.2:1,localhost:1", "sh", "-c", SHOW)
    assert result.returncode == 0, result.stderr
    assert [r["l"].rpartition(":")[0] for r in rows(result)] == ["127.0.0.2"] * 2


@pytest.mark.parametrize(("insecure", "said"), [("off", "guarded"), ("on", "open")])
def test_daemons_on_other_hosts_have_a_key_unless_insecure_is_on(fake_ssh, monkeypatch, insecure, said):
    monkeypatch.setenv("DEFT_INSECURE", insecure)
    script = 'if [ -s "${DEFT_SOCKET%/*}/key" ]; then echo guarded; else echo open; fi'
    result = deftrun("-H", "127.0.0.2:1,127.0.0.3:1", "sh", "-c", script)
    assert sorted(result.stdout.splitlines()) == [f"[{rank}] {said}" for rank in range(2)], result.stderr


def test_a_key_that_the_flag_file_names_is_the_one(fake_ssh, tmp_path):
    key = tmp_path / "key"
    key.write_text(subprocess.run([BIN / "deft", "keygen"], check=True, capture_output=True, text=True).stdout)
    key.chmod(0o600)
    file = tmp_path / "flags"
    file.write_text(f"secret_file = {key}\n")
    script = "[ ! -e ${DEFT_SOCKET%/*}/key ]"  # this run's own
    result = deftrun("-H", "127.0.0.2:1,127.0.0.3:1", "--flag-file", str(file), "sh", "-c", script)
    assert result.returncode == 0, result.stderr


def test_one_other_host_needs_no_daemon_that_others_reach(fake_ssh, tmp_path, monkeypatch):
    monkeypatch.setenv("DEFT_SOCKET", str(tmp_path / "shared.sock"))
    with shared_daemon(tmp_path / "shared.sock") as place:
        result = deftrun("-H", "127.0.0.2:2", "sh", "-c", SHOW)
        assert result.returncode == 0, result.stderr
        assert [r["l"] for r in rows(result)] == [place] * 2
        result = deftrun("-H", "127.0.0.2:1,localhost:1", "sh", "-c", SHOW)
        assert result.returncode == 1
        assert f"the deftd of node 0 (127.0.0.2) listens on {place}, where other hosts cannot" in last_block(result)


def test_a_host_that_is_missing_is_named(fake_ssh):
    result = deftrun("-np", "2", "-H", "localhost:1,missing:1", "sleep", "600")
    assert result.returncode == 1
    assert "node 1 (missing) is lost" in last_block(result)
    assert result.stderr.rstrip().endswith("ssh: Could not resolve hostname missing")


def test_a_hostfile_is_read(fake_ssh, tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# two machines\n127.0.0.2 slots=1\n127.0.0.3:1  # the other\n")
    result = deftrun("--hostfile", str(file), "sh", "-c", SHOW)
    assert [(r["r"], r["w"]) for r in rows(result)] == [("0", "2"), ("1", "2")], result.stderr


def test_hosts_that_do_not_answer_are_named_at_the_deadline(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    result = deftrun("-H", "silent1:1,silent2:1", "--start-timeout", "1", "--grace", "0", "true")
    assert result.returncode == 1
    assert "not ready within 1 s (--start-timeout): node 0 (silent1), node 1 (silent2)" in last_block(result)
