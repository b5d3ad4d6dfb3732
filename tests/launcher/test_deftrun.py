"""deftrun: placement, output, the first failure, signals, and nothing left behind."""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from launched import (
    BIN,
    SHOW,
    deftrun,
    gone,
    last_block,
    own_temp,  # noqa: F401  (each run has a temporary folder of its own)
    processes_naming,
    rows,
    shared_daemon,
    start,
    wait_until,
)

# --- placement


def test_workers_of_one_node_know_their_places():
    result = deftrun("-np", "3", "sh", "-c", SHOW)
    assert result.returncode == 0, result.stderr
    found = rows(result)
    assert [(r["r"], r["w"], r["lr"], r["ls"]) for r in found] == [(str(i), "3", str(i), "3") for i in range(3)]
    assert len({r["s"] for r in found}) == 1


def test_emulated_nodes_have_daemons_of_their_own():
    result = deftrun("-np", "5", "--nodes", "2", "sh", "-c", SHOW)
    assert result.returncode == 0, result.stderr
    found = rows(result)
    assert [(r["lr"], r["ls"]) for r in found] == [("0", "3"), ("1", "3"), ("2", "3"), ("0", "2"), ("1", "2")]
    assert len({r["s"] for r in found}) == 2
    assert {r["l"].rpartition(":")[0] for r in found} == {"127.0.0.1"}


def test_output_carries_the_rank_and_keeps_its_stream():
    result = deftrun("-np", "2", "sh", "-c", "echo out $DEFT_RANK; echo err $DEFT_RANK >&2; printf 'no end'")
    assert sorted(result.stdout.splitlines()) == ["[0] no end", "[0] out 0", "[1] no end", "[1] out 1"]
    assert sorted(result.stderr.splitlines()) == ["[0] err 0", "[1] err 1"]


def test_output_that_the_locale_cannot_show_ends_nothing(monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    result = deftrun("-np", "1", "printf", r"caf\303\251\n")
    assert (result.returncode, result.stdout) == (0, "[0] caf\\xe9\n"), result.stderr


def test_closed_streams_end_nothing():
    script = 'exec >&- 2>&-; exec "$@"'
    result = subprocess.run(
        [
            "sh",
            "-c",
            script,
            "sh",
            sys.executable,
            BIN / "deftrun",
            "-np",
            "1",
            "sh",
            "-c",
            "echo out; echo err >&2; exit 3",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (result.returncode, result.stdout, result.stderr) == (3, "", "")


def test_much_output_arrives_whole():
    result = deftrun("-np", "2", "sh", "-c", "seq 1 20000")
    lines = result.stdout.splitlines()
    for rank in (0, 1):
        assert [line for line in lines if line.startswith(f"[{rank}]")] == [f"[{rank}] {i}" for i in range(1, 20001)]


def test_a_line_that_ends_by_a_return_is_shown_at_once(tmp_path):
    seen = tmp_path / "seen"
    script = f"printf '50%%\\r'; until [ -e {seen} ]; do sleep 0.05; done; printf '100%%\\n'"
    run = start("-np", "1", "sh", "-c", script)
    assert run.stdout.readline() == "[0] 50%\n"
    seen.touch()
    assert run.communicate(timeout=240)[0] == "[0] 100%\n"


def test_output_without_an_end_of_line_keeps_nobody_from_ending_the_run():
    run = start("-np", "1", "--grace", "600", "sh", "-c", "trap 'exit 0' INT; cat /dev/zero")
    assert run.stdout.read(4) == "[0] "
    os.set_blocking(run.stdout.fileno(), True)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=240)
    assert run.returncode == 130


def test_options_and_variables_reach_the_workers():
    script = "echo $DEFT_POLICY $DEFT_LINKS $DEFT_BUCKET_BYTES $COLOUR"
    words = ["--policy", "bytescheduler", "--network-interfaces", "lo", "--bucket-bytes=1MB", "-x", "COLOUR=red"]
    result = deftrun("-np", "1", *words, "sh", "-c", script)
    assert result.stdout == "[0] bytescheduler gloo:lo 1MB red\n", result.stderr


def test_jobs_have_names_of_their_own():
    names = {deftrun("-np", "1", "sh", "-c", "echo $DEFT_JOB").stdout for _ in range(2)}
    assert len(names) == 2
    assert deftrun("-np", "1", "--job", "mine", "sh", "-c", "echo $DEFT_JOB").stdout == "[0] mine\n"


def test_runs_of_one_step_of_slurm_have_names_of_their_own(monkeypatch):
    monkeypatch.setenv("DEFT_JOB", "slurm-77.4294967291")
    names = [deftrun("-np", "1", "sh", "-c", "echo $DEFT_JOB").stdout.split()[1] for _ in range(2)]
    assert all(name.startswith("slurm-77.4294967291.run-") for name in names) and names[0] != names[1]


def test_a_script_of_torch_distributed_runs_as_under_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os\n"
        "import deft.torch, torch\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('deft')\n"
        "x = torch.tensor([float(os.environ['LOCAL_RANK']) + 1])\n"
        "dist.all_reduce(x)\n"
        "print('sum', x.item(), dist.get_rank(), dist.get_world_size())\n"
        "dist.destroy_process_group()\n"
    )
    done = deftrun("-np", "2", sys.executable, str(script))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] sum 3.0 0 2", "[1] sum 3.0 1 2"]


def test_the_workers_reach_their_daemon():
    result = deftrun("-np", "2", "--nodes", "2", str(BIN / "deft"), "status", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count('"jobs": []') == 2


def test_a_running_daemon_is_used_unless_it_drains(tmp_path):
    path = tmp_path / "shared.sock"
    run = ["-np", "1", "--socket", str(path), "sh", "-c", SHOW]
    with shared_daemon(path) as place:
        result = deftrun(*run)
        assert (result.returncode, result.stderr) == (0, "")
        assert (rows(result)[0]["s"], rows(result)[0]["l"]) == (str(path), place)
        subprocess.run([BIN / "deft", "drain", f"--socket={path}"], check=True, capture_output=True)
        result = deftrun(*run)
        assert result.returncode == 0, result.stderr
        assert rows(result)[0]["s"] != str(path) and rows(result)[0]["l"] != place


def test_options_that_a_running_daemon_does_not_take_are_named(tmp_path):
    path = tmp_path / "shared.sock"
    words = ["-np", "1", "--memory-limit", "1GB", "--policy", "fifo", "--metrics=127.0.0.1:0", "--socket", str(path)]
    with shared_daemon(path):
        result = deftrun(*words, "true")
    assert result.returncode == 0
    assert result.stderr.splitlines() == [
        "deftrun: node 0 (localhost): a deftd runs there, and has its own settings: --memory-limit, --metrics changes "
        "nothing"
    ]


def test_the_flag_file_counts_as_much_as_a_variable(tmp_path):
    file = tmp_path / "flags"
    file.write_text("# what deft optimize found\nlinks = gloo:auto  # all NICs\njob = mine\njob-token = secret\n")
    run = ["sh", "-c", "echo links=$DEFT_LINKS job=$DEFT_JOB token=$DEFT_JOB_TOKEN"]
    result = deftrun("-np", "1", "--flag-file", str(file), *run)
    assert result.stdout == "[0] links= job= token=\n", result.stderr
    result = deftrun("-np", "1", "--flag-file", str(file), "--links", "gloo:lo", *run)
    assert result.stdout == "[0] links=gloo:lo job= token=\n", result.stderr


def test_a_wrong_flag_file_is_told_by_who_reads_it(tmp_path):
    file = tmp_path / "flags"
    file.write_text("lnks = gloo:lo\n")
    result = deftrun("-np", "1", "--flag-file", str(file), "true")
    assert result.returncode == 1 and f"{file}:1: unknown option lnks" in last_block(result), result.stderr


# --- failures


def test_the_first_failure_ends_all_and_its_cause_is_last():
    script = 'if [ $DEFT_RANK = 1 ]; then echo "no such layer" >&2; exit 3; fi; exec sleep 600'
    result = deftrun("-np", "3", "--nodes", "2", "sh", "-c", script)
    assert result.returncode == 3
    assert last_block(result).startswith("deftrun: rank 1 on node 0 (127.0.0.1) exited with status 3")
    assert result.stderr.rstrip().endswith("no such layer")


def test_a_killed_worker_gives_its_signal():
    result = deftrun("-np", "2", "sh", "-c", "[ $DEFT_RANK = 1 ] && kill -9 $$; exec sleep 600")
    assert result.returncode == 137
    assert "rank 1 on node 0 (localhost) was killed by SIGKILL" in last_block(result)


def test_a_worker_that_ignores_term_is_killed_after_the_grace():
    script = "trap '' TERM; if [ $DEFT_RANK = 0 ]; then sleep 1; exit 5; fi; while :; do sleep 0.1; done"
    result = deftrun("-np", "2", "--grace", "1", "sh", "-c", script)
    assert result.returncode == 5


def test_what_a_worker_left_running_is_ended(tmp_path):
    note = tmp_path / "pid"
    result = deftrun("-np", "1", "sh", "-c", f"sleep 600 >/dev/null 2>&1 & echo $! >{note}")
    assert result.returncode == 0
    assert wait_until(lambda: gone(int(note.read_text())))


def stray_that_notes_itself(folder: Path, trap: str = "") -> str:
    """A worker's command that puts a process into a session of its own, and goes on when that has begun."""
    note = folder / "pid"
    (folder / "stray").write_text(f"{trap}echo $$ >{note}; while :; do sleep 0.1; done")
    return f"setsid sh {folder}/stray >/dev/null 2>&1 & until [ -s {note} ]; do sleep 0.05; done"


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_what_a_worker_put_into_a_session_of_its_own_is_ended(tmp_path, trap):
    result = deftrun("-np", "1", "sh", "-c", stray_that_notes_itself(tmp_path, trap))
    assert result.returncode == 0
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_a_worker_left_behind_does_not_stay_as_a_zombie():
    left = "pid=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); for i in $(seq 400); do"
    script = f"{left} [ -d /proc/$pid ] || exit 0; sleep 0.05; done; exit 3"
    assert deftrun("-np", "1", "sh", "-c", script).returncode == 0


def test_a_command_that_does_not_exist_is_named():
    result = deftrun("-np", "2", "/no/such/program")
    assert result.returncode == 1
    assert "cannot run /no/such/program: No such file or directory" in last_block(result)


def test_a_dead_daemon_ends_the_run_and_is_named():
    pid = f"$({BIN}/deft status --json | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p')"
    script = f"if [ $DEFT_RANK = 1 ]; then kill -9 {pid}; fi; exec sleep 600"
    result = deftrun("-np", "2", "--nodes", "2", "sh", "-c", script)
    assert result.returncode == 1
    assert "node 1 (127.0.0.2): its deftd was killed by SIGKILL" in last_block(result)


@pytest.mark.parametrize(
    ("old", "instead"),
    [("--max-late-percent", "max_stale_percent"), ("--slots", "leave it"), ("--role", "deftd server")],
)
def test_a_flag_that_existed_once_says_what_to_write_instead(old, instead):
    result = deftrun("-np", "1", old, "5", "true")
    assert result.returncode == 2
    assert f"{old} is no option any more" in result.stderr and instead in result.stderr


def test_a_policy_that_does_not_exist_is_refused_with_a_suggestion():
    result = deftrun("-np", "2", "--policy", "fifoo", "true")
    assert result.returncode == 2
    assert "deftrun: --policy: 'fifoo' is none of" in result.stderr
    assert "did you mean fifo?" in result.stderr


def test_a_wrong_value_of_a_flag_is_told_under_the_name_of_the_flag(monkeypatch):
    monkeypatch.setenv("DEFT_BUCKET_BYTES", "2MB")
    result = deftrun("-np", "2", "--bucket-bytes", "3XB", "true")
    assert result.returncode == 2
    assert result.stderr.startswith("deftrun: --bucket-bytes: '3XB' is not a size")


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("--compression", "int88", "no codec is called 'int88' (did you mean int8?)"),
        ("--compression", "auto/max=int44", "no codec is called 'int44' (did you mean int4?)"),
        ("--compression", "topk/ratio=2", "ratio"),
        ("--links", "gluu:eth0", "there is no link backend 'gluu'"),
    ],
)
def test_a_codec_or_a_link_that_no_job_can_have_is_refused_before_anything_starts(flag, value, why):
    result = deftrun("-np", "1", flag, value, "true")
    assert result.returncode == 2
    assert result.stderr.startswith(f"deftrun: {flag}: ") and why in result.stderr


@pytest.mark.parametrize(("flag", "value"), [("-np", "two"), ("-np", "0"), ("--grace", "soon"), ("--grace", "-1")])
def test_a_number_that_is_none_is_told(flag, value):
    result = deftrun("-np", "1", flag, value, "true")
    assert result.returncode == 2
    assert f"{value} is not" in result.stderr


def test_a_nic_that_does_not_exist_is_named():
    python = "import deft; deft.open()"
    result = deftrun("-np", "2", "--nodes", "2", "--links", "gloo:nic9", sys.executable, "-c", python)
    assert result.returncode != 0
    assert "no network interface 'nic9'; there are: lo" in last_block(result)


# --- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_ending_signal_is_passed_on_and_nothing_else_within_the_grace(number):
    handler = "echo told; sleep 0.5; echo saved; exit 0"
    trap = f"trap '{handler}' {number.name[3:]}; echo up; while :; do sleep 0.05; done"
    run = start("-np", "2", "--nodes", "2", "--grace", "60", "sh", "-c", trap)
    up = [run.stdout.readline() for _ in range(2)]
    assert sorted(up) == ["[0] up\n", "[1] up\n"]
    run.send_signal(number)
    out, errors = run.communicate(timeout=240)
    assert run.returncode == 128 + number
    assert sorted(out.splitlines()) == ["[0] saved", "[0] told", "[1] saved", "[1] told"]
    assert errors.rstrip().endswith(f"deftrun: ended by {signal.Signals(number).name}")


def test_a_run_that_nohup_started_outlives_its_terminal(tmp_path):
    told = tmp_path / "told"
    script = f"echo up; until [ -e {told} ]; do sleep 0.05; done; echo on"
    run = start("-np", "1", "sh", "-c", script, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert run.stdout.readline() == "[0] up\n"
    run.send_signal(signal.SIGHUP)
    told.touch()
    out, errors = run.communicate(timeout=240)
    assert (run.returncode, out) == (0, "[0] on\n"), errors


def test_an_interrupt_while_a_running_daemon_is_asked_leaves_nothing(tmp_path):
    path = tmp_path / "mute.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(str(path))
        mute.listen()
        run = start("-np", "1", "--start-timeout", "3600", "--socket", str(path), "true")
        with mute.accept()[0] as asker:
            pid, _, _ = struct.unpack("3i", asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=240)
            assert run.returncode == 130
            assert wait_until(lambda: gone(pid))


def interrupt_until_it_ends(run: subprocess.Popen) -> None:
    def ended() -> bool:
        run.send_signal(signal.SIGINT)
        return run.poll() is not None

    assert wait_until(ended)
    run.communicate()


def test_a_second_interrupt_ends_also_what_the_workers_started():
    stubborn = r"trap '' INT TERM; echo \$\$; while :; do sleep 0.05; done"
    run = start("-np", "1", "--grace", "600", "sh", "-c", f'trap "" INT TERM; sh -c "{stubborn}"; :')
    child = int(run.stdout.readline().split()[1])
    interrupt_until_it_ends(run)
    assert wait_until(lambda: gone(child))


def test_a_reader_that_goes_ends_the_run_and_the_workers_have_the_grace(tmp_path):
    saved = tmp_path / "saved"
    handler = f"for i in 1 2 3 4 5 6 7 8; do echo saving; sleep 0.05; done; touch {saved}; exit 0"
    run = start(
        "-np", "1", "--grace", "60", "sh", "-c", f"trap '{handler}' TERM; while :; do echo on; sleep 0.02; done"
    )
    assert run.stdout.readline() == "[0] on\n"
    run.stdout.close()
    assert run.stderr.read().endswith("deftrun: nobody reads the output any more\n")
    assert run.wait(timeout=240) == 1 and saved.exists()


def test_an_interrupt_while_the_launcher_loads_its_modules_is_no_traceback(tmp_path, monkeypatch):
    (tmp_path / "shlex.py").write_text("import time\nprint('loading', flush=True)\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = start("-np", "1", "true")
    assert run.stdout.readline() == "loading\n"
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=240)
    assert (run.returncode, errors) == (-signal.SIGINT, "")


@pytest.fixture
def slow_daemon(tmp_path):
    """A deftrun whose deftd never becomes usable, and the file to which that deftd writes its agent's process."""
    (tmp_path / "lib/deft").mkdir(parents=True)
    shutil.copytree(BIN.parent / "lib/deft/deft_launcher", tmp_path / "lib/deft/deft_launcher")
    (tmp_path / "bin").mkdir()
    shutil.copy(BIN / "deftrun", tmp_path / "bin/deftrun")
    (tmp_path / "bin/deft").symlink_to(BIN / "deft")
    note = tmp_path / "agent"
    (tmp_path / "bin/deftd").write_text(f"#!/bin/sh\necho $PPID >{note}.new; mv {note}.new {note}; exec sleep 600\n")
    (tmp_path / "bin/deftd").chmod(0o755)
    return tmp_path / "bin/deftrun", note


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_before_the_daemon_is_usable_leaves_nothing(slow_daemon, number):
    program, note = slow_daemon
    run = start("-np", "1", "true", program=program)
    assert wait_until(note.exists)
    if number == signal.SIGINT:
        run.send_signal(number)  # the agent hears it
    else:
        os.kill(int(note.read_text()), number)  # the launcher knows what the agent has made
    run.communicate(timeout=240)
    assert run.returncode == (130 if number == signal.SIGINT else 1)


def test_a_user_signal_is_passed_on_and_ends_nothing():
    run = start("-np", "1", "sh", "-c", "trap 'echo got it; exit 0' USR1; echo up; while :; do sleep 0.05; done")
    assert run.stdout.readline() == "[0] up\n"
    run.send_signal(signal.SIGUSR1)
    out, errors = run.communicate(timeout=240)
    assert (run.returncode, out) == (0, "[0] got it\n"), errors


def test_a_killed_launcher_leaves_nothing(own_temp):  # noqa: F811
    run = start("-np", "2", "--nodes", "2", "sh", "-c", "echo $$; exec sleep 600")
    workers = [int(run.stdout.readline().split()[1]) for _ in range(2)]
    run.kill()
    run.communicate()
    assert wait_until(lambda: all(gone(pid) for pid in workers))
    assert wait_until(lambda: not list(own_temp.iterdir()) and not processes_naming(str(own_temp)))


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_killed_agent_leaves_nothing_in_a_session_of_its_own(tmp_path, trap):
    script = f"{stray_that_notes_itself(tmp_path, trap)}; echo $PPID; exec sleep 600"
    run = start("-np", "1", "sh", "-c", script)
    os.kill(int(run.stdout.readline().split()[1]), signal.SIGKILL)
    run.communicate(timeout=240)
    assert run.returncode == 1
    assert wait_until(lambda: gone(int((tmp_path / "pid").read_text())))


def test_an_agent_whose_keeper_is_killed_ends_all(tmp_path):
    parent = "$(cut -d' ' -f4 /proc/$PPID/stat)"
    run = start("-np", "1", "sh", "-c", f"{stray_that_notes_itself(tmp_path)}; echo $$ {parent}; exec sleep 600")
    worker, keeper = map(int, run.stdout.readline().split()[1:])
    os.kill(keeper, signal.SIGKILL)
    run.communicate(timeout=240)
    assert run.returncode != 0
    assert wait_until(lambda: gone(worker) and gone(int((tmp_path / "pid").read_text())))


def test_a_killed_agent_is_a_lost_node():
    run = start("-np", "2", "--nodes", "2", "sh", "-c", "echo $DEFT_RANK $PPID; exec sleep 600")
    agents = dict(run.stdout.readline().split()[1:] for _ in range(2))
    os.kill(int(agents["1"]), signal.SIGKILL)
    _, errors = run.communicate(timeout=240)
    assert run.returncode == 1
    assert "deftrun: node 1 (127.0.0.2) is lost" in errors


# --- wrong usage


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-np", "2"], "no command to run"),
        (["true"], "how many workers: -np N"),
        (["-np", "9", "-H", "localhost:2", "true"], "the hosts have 2 slots"),
        (["-np", "1", "--nodes", "2", "true"], "more nodes than workers"),
        (["-np", "2", "-H", "a:x", "true"], "'a:x' is no host:slots"),
        (["-np", "2", "--nodes", "2", "-H", "localhost:2", "true"], "leave -H and --hostfile out"),
        (["--hostfile", "/no/such/file", "true"], "cannot read /no/such/file"),
        (["-np", "2", "-x", "NO_SUCH_VARIABLE", "true"], "not set here"),
        (["-np", "0", "true"], "not 1 or more"),
        (["-np", "1", "--no-such-option", "true"], "no-such-option"),
        (["-np", "1", "--rank", "0", "true"], "rank"),
        (["-np", "1", "--polcy", "fifo", "true"], "unknown option --polcy: did you mean --policy?"),
        (["--np", "1", "true"], "unknown option --np: did you mean -np?"),
        (["-np", "1", "--listen", "127.0.0.1:1", "true"], "deftrun chooses --listen itself"),
        (["-np", "1", "-x", "=red", "true"], "names no variable"),
        (["-np", "1", "--start-timeout", "nan", "true"], "nan is not between 0 and 86400"),
        (["-np", "1", "--grace", "-1", "true"], "-1 is not between 0 and 86400"),
    ],
)
def test_wrong_usage_is_told(words, says):
    result = deftrun(*words)
    assert result.returncode == 2
    assert says in result.stderr


def test_version_and_help():
    assert re.fullmatch(r"deft \d+\.\d+\.\d+\n", deftrun("--version").stdout)
    assert "-np" in deftrun("--help").stdout
