"""The agent's own promises that a whole run cannot show at will."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from deft_launcher import agent, arguments, hosts, launch, wire  # noqa: E402

PLAN = {
    "environment": {},
    "options": {"links": "gloo:lo"},
    "private": True,
    "address": "127.0.0.1",
    "peers": [],
    "over_ssh": False,
    "start_timeout": 120,
    "grace": 1,
}


@pytest.fixture
def quiet_agent(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(agent.tempfile, "tempdir", None)
    ours, launcher = socket.socketpair()
    monkeypatch.setattr(agent.wire.Lines, "__init__", keep_input_blocking(agent.wire.Lines.__init__, ours))
    made = agent.Agent()
    events = []
    made.report = lambda event, **fields: events.append((event, fields))
    with ours, launcher:
        yield made, events
        made.going = True
        made.end()
    assert list(tmp_path.iterdir()) == []


def keep_input_blocking(original, instead):
    def init(self, descriptor):  # the test's own input is not the agent's to change
        original(self, instead.fileno() if descriptor == 0 else descriptor)

    return init


def test_a_port_in_use_makes_it_try_another(quiet_agent, monkeypatch):
    made, events = quiet_agent
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = iter([port, free_port()])
        monkeypatch.setattr(agent, "free_port", lambda address: next(ports))
        made.prepare(PLAN)
    ready = dict(events)["ready"]
    assert not ready["listen"].endswith(f":{port}")
    assert next(ports, None) is None


def test_a_temporary_folder_with_a_long_path_is_named(quiet_agent, monkeypatch, tmp_path):
    made, events = quiet_agent
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(agent.tempfile, "tempdir", None)
    with pytest.raises(RuntimeError, match=rf"{folder}.* is longer than the 107 bytes .*: set TMPDIR"):
        made.prepare(PLAN)
    assert made.daemon is None and "ready" not in dict(events)
    made.end()
    folder.rmdir()


def test_a_daemon_that_does_not_answer_is_an_error_and_no_second_one_is_started(quiet_agent, tmp_path_factory):
    made, events = quiet_agent
    path = tmp_path_factory.mktemp("mute") / "deftd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(str(path))
        mute.listen()
        options = PLAN["options"] | {"socket": str(path)}
        with pytest.raises(RuntimeError, match=rf"has not answered for 0\.75s: .*{path}"):
            made.prepare(PLAN | {"private": False, "start_timeout": 1, "options": options})
    assert made.daemon is None and events == []


@contextmanager
def running_daemon(path, listen, *more):
    words = [arguments.program("deftd"), f"--socket={path}", f"--listen={listen}", "--links=gloo:lo", "--ready-fd=1"]
    with subprocess.Popen([*words, *more], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
        try:
            assert daemon.stdout.readline() == "ready\n"
            yield daemon
        finally:
            daemon.kill()


def test_a_daemon_that_answers_late_is_used(quiet_agent, tmp_path_factory, monkeypatch):
    made, events = quiet_agent
    path = tmp_path_factory.mktemp("slow") / "deftd.sock"
    listen = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("DEFT_TIMEOUT", "1s")  # what `deft status` would wait by itself
    with running_daemon(path, listen) as daemon:
        daemon.send_signal(signal.SIGSTOP)
        later = threading.Timer(2, daemon.send_signal, [signal.SIGCONT])
        later.start()
        made.prepare(PLAN | {"private": False, "options": PLAN["options"] | {"socket": str(path)}})
        later.join()
    assert events == [("ready", {"listen": listen, "private": False, "meeting_port": made.meeting.getsockname()[1]})]


def test_ports_that_stay_in_use_are_an_error(quiet_agent, monkeypatch):
    made, events = quiet_agent
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(agent, "free_port", lambda address: port)
        with pytest.raises(RuntimeError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            made.prepare(PLAN)
    assert "ready" not in dict(events)


class Stubborn:
    """A daemon that ends when it is told a second time."""

    rank, outputs, tail, reported, returncode = None, (), (), False, 0

    def __init__(self):
        self.process, self.told = self, []

    def send(self, number):
        self.told.append(number)

    def poll(self):
        return None if self.told.count(signal.SIGTERM) < 2 else self.returncode

    def wait(self):
        return self.returncode


def test_a_daemon_that_goes_on_is_told_a_second_time_before_it_is_killed(quiet_agent, monkeypatch):
    made, _ = quiet_agent
    monkeypatch.setattr(agent, "DAEMON_GRACE", 0.05)
    made.daemon, made.going = Stubborn(), True
    made.end()
    assert made.daemon.told == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]


def test_ranks_fill_the_hosts_in_order():
    nodes = hosts.spread_over_hosts(5, {"a": 2, "b": 4})
    assert [(n.host, n.first_rank, n.workers) for n in nodes] == [("a", 0, 2), ("b", 2, 3)]


def test_hosts_without_work_are_left_out():
    assert [n.host for n in hosts.spread_over_hosts(2, {"a": 2, "b": 4})] == ["a"]


def test_a_host_named_twice_has_both_slots():
    assert hosts.parse_hosts("a:2,b,a:3") == {"a": 5, "b": 1}


def test_a_hostfile_may_have_comments_in_any_encoding(tmp_path):
    (tmp_path / "hosts").write_bytes(b"# f\xfcr\na slots=2\n")
    assert hosts.read_hostfile(str(tmp_path / "hosts")) == {"a": 2}


def test_no_host_is_an_option_of_ssh(tmp_path):
    (tmp_path / "hosts").write_text("-oProxyCommand=true slots=1\n")
    with pytest.raises(hosts.UsageError, match="is no `host slots=N`"):
        hosts.read_hostfile(str(tmp_path / "hosts"))


def test_a_working_directory_that_is_gone_is_told(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(hosts.UsageError, match="the working directory is gone"):
        plans_of("localhost")


# --- where nodes reach each other


def plans_of(named):
    run = arguments.Run(["true"], hosts.spread_over_hosts(None, hosts.parse_hosts(named)))
    launcher = launch.Launcher(run)
    return [launcher.plan(node, {}) for node in run.nodes]


@pytest.mark.parametrize(
    ("named", "peers"),
    [
        ("b,localhost", [[], ["b"]]),
        ("localhost,b,me@c", [["b", "c"], ["c"], ["b"]]),
        ("b,127.0.0.1,localhost", [[], ["b"], ["b"]]),
    ],
)
def test_no_node_looks_for_its_address_on_the_way_to_localhost(named, peers):
    plans = plans_of(named)
    assert [plan["peers"] for plan in plans] == peers
    assert [plan["address"] for plan in plans] == [""] * len(peers)


def test_nodes_of_one_machine_meet_on_loopback():
    assert [plan["address"] for plan in plans_of("localhost,127.0.0.1")] == ["127.0.0.1"] * 2


@pytest.fixture
def resolves_only_b(monkeypatch):
    def own_address(peer):
        if peer != "b":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return "10.0.0.1"

    monkeypatch.setattr(agent, "own_address", own_address)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.9 40000 10.0.0.2 22")


@pytest.mark.parametrize(
    ("peers", "over_ssh", "address"),
    [
        (["b"], True, "10.0.0.1"),
        (["alias", "b"], False, "10.0.0.1"),
        (["alias"], True, "10.0.0.2"),
        ([], True, "10.0.0.2"),
    ],
)
def test_a_node_finds_the_address_at_which_others_reach_it(resolves_only_b, peers, over_ssh, address):
    plan = {"address": "", "peers": peers, "over_ssh": over_ssh}
    assert agent.reachable_address(plan) == address


def test_a_daemon_that_listens_everywhere_is_named_by_an_address(resolves_only_b, quiet_agent, tmp_path_factory):
    made, events = quiet_agent
    path, port = tmp_path_factory.mktemp("open") / "deftd.sock", free_port()
    plan = {"private": False, "address": "", "peers": ["b"], "options": PLAN["options"] | {"socket": str(path)}}
    with running_daemon(path, f"0.0.0.0:{port}", "--insecure=on"):
        made.prepare(PLAN | plan)
    assert [fields["listen"] for _, fields in events] == [f"10.0.0.1:{port}"]


def test_names_that_do_not_resolve_are_told(resolves_only_b):
    with pytest.raises(RuntimeError, match=r"\(alias: Name or service not known\): name the hosts by IPv4 addresses"):
        agent.reachable_address({"address": "", "peers": ["alias"], "over_ssh": False})


def test_this_machine_may_have_a_name_that_dns_cannot_have(monkeypatch):
    hosts.own_names.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "x" * 64)
    try:
        assert hosts.is_local("x" * 64) and not hosts.is_local("y")
    finally:
        hosts.own_names.cache_clear()


def test_the_own_names_are_looked_up_once(monkeypatch):
    asked = []
    monkeypatch.setattr(hosts.socket, "getfqdn", lambda: asked.append(1) or "own.example")
    hosts.own_names.cache_clear()
    plans = plans_of(",".join(f"n{i}" for i in range(64)))
    hosts.own_names.cache_clear()
    assert len(plans) == 64 and len(asked) == 1


@pytest.mark.parametrize(
    ("key", "shared", "says"),
    [
        ("key", ("node 0 (a)",), "a deftd runs on node 0 (a), and none that takes jobs on node 1 (b): "),
        ("key", ("node 0 (a)", "node 1 (b)"), ""),
        ("key", (), ""),
        ("", ("node 0 (a)",), ""),  # the user has named one key for all, or wants none
    ],
)
def test_daemons_of_which_some_have_the_runs_key_are_not_brought_together(key, shared, says):
    run = arguments.Run(["true"], hosts.spread_over_hosts(None, {"a": 1, "b": 1}))
    launcher = launch.Launcher(run)
    launcher.key = key
    names = [f"node {node.index} ({node.host})" for node in run.nodes]
    launcher.remotes = [
        SimpleNamespace(node=node, name=name, listen="10.0.0.1:1", is_shared=name in shared)
        for node, name in zip(run.nodes, names, strict=True)
    ]
    obstacle = launcher.why_daemons_cannot_meet()
    assert obstacle.startswith(says) and bool(obstacle) == bool(says)


# --- what programs write


@pytest.fixture
def text():
    reader, writer = os.pipe()
    lines = wire.TextLines(reader)

    def lines_of(*pieces):
        found = []
        for piece in pieces:
            os.write(writer, piece)
            found += lines.read()
        return found

    yield lines_of
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ((b"a\nb", b"c\n"), [b"a", b"bc"]),
        ((b"a\r\n\nb\r\n",), [b"a", b"", b"b"]),
        ((b"a\r", b"\nb\n"), [b"a", b"b"]),
        ((b"\r10%", b"\r20%", b"\r30%\n"), [b"10%", b"20%", b"30%"]),
        ((b"50%\r",), [b"50%"]),
    ],
)
def test_lines_end_by_a_feed_a_return_or_both(text, pieces, lines):
    assert text(*pieces) == lines


def test_text_without_an_end_of_line_is_given_out_in_pieces(text):
    given = text(*[b"x" * 40_000] * 100)
    assert 0 <= 4_000_000 - sum(map(len, given)) <= wire.TextLines.LONGEST
    assert max(map(len, given)) <= 2 * wire.TextLines.LONGEST


def test_a_stream_that_never_ends_is_read_in_turns():
    with open("/dev/zero", "rb") as endless:
        assert 0 < sum(map(len, wire.TextLines(endless.fileno()).read())) <= wire.PIECES * wire.PIECE_BYTES
