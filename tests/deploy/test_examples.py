"""The examples of deploy/ run: on emulated nodes, with the cluster's own programs replaced by small ones."""

import contextlib
import os
import re
import shutil
import signal
import socket as socket_module
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/process"))

from cluster import free_port, wait_until  # noqa: E402
from under_test import BUILD  # noqa: E402

WORKER = r"""
import deft, os, sys
with deft.open() as session:
    session.barrier("all have come")
    os.write(1, f"worker {session.rank} {session.size} {session.local_rank} {session.node}\n".encode())  # in one piece
sys.exit(int(sys.argv[1]) if session.rank == 1 else 0)
"""

# `srun [--overlap] [--ntasks-per-node=N] [--ntasks=N] COMMAND`: two nodes, each with a TMPDIR of its own.
SRUN = """
import os, signal, subprocess, sys
words = sys.argv[1:]
options = {}
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    options[name] = value
assert set(options) <= {"--overlap", "--ntasks-per-node", "--ntasks"}, options
each = int(options.get("--ntasks-per-node", os.environ["SLURM_NTASKS_PER_NODE"]))
tasks = []
for node in range(2):
    for local in range(each):
        own = dict(os.environ, SLURM_PROCID=str(node * each + local), SLURM_LOCALID=str(local), SLURM_NODEID=str(node))
        own |= dict(SLURM_NTASKS=str(2 * each), SLURM_STEP_NUM_TASKS=str(2 * each))
        own["SLURM_STEP_TASKS_PER_NODE"] = f"{each}(x2)"
        own["TMPDIR"] = os.environ["NODES"] + f"/node{node}"
        tasks.append(subprocess.Popen(words, env=own))
signal.signal(signal.SIGTERM, lambda *_: [task.terminate() for task in tasks])
sys.exit(max(abs(task.wait()) for task in tasks))
"""

# Of `ip route get`: the node's own address on the way.
IP = """
import os, sys
assert sys.argv[1:4] == ["-o", "route", "get"] and sys.argv[4].startswith("127.0.0."), sys.argv
print(sys.argv[4], "dev lo src 127.0.0." + str(1 + int(os.environ.get("SLURM_NODEID", "0"))), "uid 0")
"""

SCONTROL = "import sys; assert sys.argv[1:] == ['show', 'hostnames', 'n[1-2]']; print('127.0.0.1'); print('127.0.0.2')"


def environment(**variables: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(BUILD / "python"), "DEFT_TIMEOUT": "60s", "DEFT_LINKS": "gloo:lo"}
    return os.environ | own | variables


def run(words: list, env: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=240, env=env, cwd=ROOT)


def workers_of(output: str) -> list[str]:
    return sorted(re.findall(r"^worker .*$", output, re.MULTILINE))


class Slurm:
    def __init__(self, folder: Path, python: str = sys.executable):
        self.nodes = folder / "nodes"
        programs = folder / "bin"
        programs.mkdir()
        for node in range(2):
            (self.nodes / f"node{node}").mkdir(parents=True)
        for name, text in {"srun": SRUN, "ip": IP, "scontrol": SCONTROL}.items():
            (programs / name).write_text(f"#!{python}\n{text}")
            (programs / name).chmod(0o755)
        self.path = f"{programs}:{BUILD / 'bin'}:{os.environ['PATH']}"

    def sbatch(self, *command: str, wrapped: Sequence[str] = ()) -> subprocess.CompletedProcess:
        variables = {
            "PATH": self.path,
            "NODES": str(self.nodes),
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": "n[1-2]",
            "SLURM_JOB_NUM_NODES": "2",
            "SLURM_NTASKS_PER_NODE": "2",
        }
        return run([*wrapped, "bash", ROOT / "deploy/slurm.sbatch", *command], environment(**variables))

    def left_behind(self) -> list[Path]:
        return [path for path in self.nodes.rglob("*") if not path.name.startswith("node")]


@pytest.fixture
def slurm(tmp_path):
    return Slurm(tmp_path)


def test_slurm_gives_each_node_a_daemon_and_the_workers_find_their_ranks(slurm):
    done = slurm.sbatch(sys.executable, "-c", WORKER, "0")
    assert done.returncode == 0, done.stderr
    assert workers_of(done.stdout) == ["worker 0 4 0 0", "worker 1 4 1 0", "worker 2 4 0 1", "worker 3 4 1 1"]
    ports = re.findall(r"and 127\.0\.0\.\d:(\d+); settings", done.stderr)
    assert set(ports) == {str(29700 + os.getpid() % 1000)}, "not that of a shared daemon"
    assert slurm.left_behind() == []


def test_slurm_passes_on_that_a_worker_failed(slurm):
    done = slurm.sbatch(sys.executable, "-c", WORKER, "7")
    assert done.returncode == 7, done.stderr
    assert slurm.left_behind() == []


MODES = """
import deft, os
folder = os.path.dirname(os.environ["DEFT_SOCKET"])
with deft.open() as session:
    modes = " ".join(oct(os.stat(path).st_mode & 0o777) for path in (folder, folder + "/key"))
    os.write(1, f"{session.rank}: {modes}\\n".encode())
"""


def test_slurm_uses_no_folder_that_another_user_has_made_before(slurm):
    folder = slurm.nodes / f"node0/deft-{os.getpid()}-0"
    folder.mkdir()
    (folder / "key").touch()
    folder.chmod(0o777)
    (folder / "key").chmod(0o666)
    done = slurm.sbatch(sys.executable, "-c", MODES)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank}: 0o700 0o600" for rank in range(4)]
    assert slurm.left_behind() == []


def test_slurm_starts_no_worker_beside_a_folder_of_another_user():
    python, other = "/usr/bin/python3", ["setpriv", "--reuid=65534", "--clear-groups"]
    if os.getuid() != 0 or any(
        run([*other, path, "--version"], {}).returncode for path in (python, BUILD / "bin/deftd")
    ):
        pytest.skip("needs root, to become another user, who must reach python and the build")
    with tempfile.TemporaryDirectory() as shared:  # others cannot enter pytest's own folders
        os.chmod(shared, 0o755)
        slurm = Slurm(Path(shared), python)
        for node in slurm.nodes.iterdir():
            node.chmod(0o1777)
        folder = slurm.nodes / f"node0/deft-{os.getpid()}-0"
        folder.mkdir()
        folder.chmod(0o755)
        with open_socket(f"{folder}/deftd.sock"):
            done = slurm.sbatch("sh", "-c", 'echo "ran on $SLURM_NODEID"', wrapped=other)
        assert "cannot create directory" in done.stderr and f"no folder {folder} of this user" in done.stderr
        assert done.returncode != 0 and "ran on 0" not in done.stdout


STAYS = """
import deft, os, sys
session = deft.open()
os.write(1, b"here\\n")
sys.stdin.read()
session.close()
"""


@contextlib.contextmanager
def shared_daemon(folder: Path):
    """A daemon that serves all jobs of a node: its socket and its process."""
    words = [BUILD / "bin/deftd", f"--socket={folder}/deftd.sock", f"--listen=127.0.0.1:{free_port('127.0.0.1')}"]
    with subprocess.Popen([*words, "--ready-fd=1"], stdout=-1, stderr=-1, env=environment(), text=True) as daemon:
        try:
            assert daemon.stdout.readline() == "ready\n"
            yield f"{folder}/deftd.sock", daemon
        finally:
            daemon.terminate()
            daemon.communicate(timeout=60)


def slurm_script(name: str, **variables: str) -> subprocess.CompletedProcess:
    """deploy/slurm-NAME as slurmd runs it for job 77."""
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_UID": str(os.getuid()), "SLURM_STEP_ID": "0", "EPILOG_SECONDS": "1"}
    path = {"PATH": f"{BUILD / 'bin'}:/usr/bin:/bin"}
    return run([ROOT / f"deploy/slurm-{name}"], environment(**(path | job | variables)))


def test_slurm_sends_no_jobs_to_a_node_whose_daemon_takes_none(tmp_path):
    with shared_daemon(tmp_path) as (socket, _):
        assert slurm_script("prolog", DEFT_SOCKET=socket).returncode == 0
        assert run([BUILD / "bin/deft", "drain", f"--socket={socket}"], environment()).returncode == 0
        drains = slurm_script("prolog", DEFT_SOCKET=socket)
        assert drains.returncode == 1 and "deft drain --undo" in drains.stderr
    Path(socket).unlink(missing_ok=True)
    assert slurm_script("prolog", DEFT_SOCKET=socket).returncode == 0  # no shared daemon
    with open_socket(socket):
        silent = slurm_script("prolog", DEFT_SOCKET=socket)
    assert silent.returncode == 1 and "deftd does not answer" in silent.stderr


@contextlib.contextmanager
def open_socket(path: str):
    """A socket behind which nobody is."""
    with contextlib.closing(socket_module.socket(socket_module.AF_UNIX, socket_module.SOCK_SEQPACKET)) as nobody:
        nobody.bind(path)
        yield


def test_slurm_gives_each_step_a_name_unless_it_has_one():
    assert slurm_script("task-prolog").stdout == "export DEFT_JOB=slurm-77.0\n"
    for own in ("mine", "slurm-77", "slurm-7.0"):
        assert slurm_script("task-prolog", DEFT_JOB=own).stdout == ""
    assert slurm_script("task-prolog", SLURM_STEP_ID="").stdout == ""


def test_slurm_gives_each_step_of_a_batch_script_another_name_than_the_script_has():
    batch = slurm_script("task-prolog", SLURM_STEP_ID="4294967291").stdout
    inherited = batch.removeprefix("export DEFT_JOB=").strip()
    steps = [slurm_script("task-prolog", SLURM_STEP_ID=step, DEFT_JOB=inherited).stdout for step in ("0", "1")]
    assert steps == ["export DEFT_JOB=slurm-77.0\n", "export DEFT_JOB=slurm-77.1\n"]


def test_slurm_leaves_nothing_of_a_job_behind(tmp_path):
    for name in ("deft-77-0", "deft-77-1", "deft-770-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").touch()
    with shared_daemon(tmp_path) as (socket, _):
        where = {"TMPDIR": str(tmp_path), "DEFT_SOCKET": socket}
        words = [sys.executable, "-c", STAYS]
        worker = subprocess.Popen(
            words, env=environment(DEFT_JOB="slurm-77.0", **where), stdin=-1, stdout=-1, text=True
        )
        assert worker.stdout.readline() == "here\n"
        left = slurm_script("epilog", **where)
        assert left.returncode == 1 and "deftd still has slurm-77.0" in left.stderr
        worker.kill()
        worker.communicate()
        ended = slurm_script("epilog", **where, EPILOG_SECONDS="60")
        assert ended.returncode == 0, ended.stderr
    assert [path.name for path in tmp_path.glob("deft-*")] == ["deft-770-0"]


def test_slurm_drains_a_node_whose_daemon_hangs_after_a_job(tmp_path):
    with shared_daemon(tmp_path) as (socket, daemon):
        daemon.send_signal(signal.SIGSTOP)
        hangs = slurm_script("epilog", TMPDIR=str(tmp_path), DEFT_SOCKET=socket, DEFT_TIMEOUT="1s")
        daemon.kill()
    assert hangs.returncode == 1 and hangs.stderr.splitlines()[-1].startswith("slurm-epilog: deftd does not answer")
    assert "Traceback" not in hangs.stderr
    assert slurm_script("epilog", TMPDIR=str(tmp_path), DEFT_SOCKET=socket).returncode == 0  # it has ended


class Pods:
    """The container's command of kubernetes.yaml, once a pod, with the variables of the file."""

    def __init__(self, folder: Path):
        text = (ROOT / "deploy/kubernetes.yaml").read_text()
        [script] = re.findall(r"\n          args:\n            - \|\n((?:              .*\n)+)", text)
        self.script = textwrap.dedent(script)
        self.variables = dict(re.findall(r'\{name: (\w+), value: "?([^"}]*)"?\}', text))
        assert re.findall(r"command: (.*)", text) == ["[bash, -uc]"]
        self.folder = folder
        self.key = folder / "key"
        self.key.write_text(run([BUILD / "bin/deft", "keygen"], environment()).stdout)
        self.key.chmod(0o400)
        (folder / "train.py").write_text(WORKER)

    def start(self, pod: int, port: int, code: int, within: tuple[str, ...] = (), **more: str) -> subprocess.Popen:
        ours = {
            "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}",
            "TRAIN": f"{sys.executable} {self.folder}/train.py {code}",
            "JOB_COMPLETION_INDEX": str(pod),
            "POD_IP": f"127.0.0.{pod + 1}",
            "DEFT_SOCKET": str(self.folder / f"pod{pod}.sock"),
            "DEFT_SECRET_FILE": str(self.key),
            "DEFT_LEADER": f"127.0.0.1:{port}",
            "DEFT_LINKS": "gloo:lo",
        }
        env = environment(**{**self.variables, **ours, **more})
        return subprocess.Popen([*within, "bash", "-uc", self.script], env=env, stdout=-1, stderr=-1, text=True)


@pytest.mark.parametrize("code", [0, 7])
def test_the_pods_of_kubernetes_train_and_end_with_the_workers_status(tmp_path, code):
    pods, port = Pods(tmp_path), free_port("127.0.0.1")
    running = [pods.start(pod, port, code) for pod in range(2)]
    ended = [pod.communicate(timeout=240) for pod in running]
    assert [pod.returncode for pod in running] == [code, 0], ended
    found = sorted(line for out, _ in ended for line in workers_of(out))
    assert found == ["worker 0 4 0 0", "worker 1 4 1 0", "worker 2 4 0 1", "worker 3 4 1 1"]


SAVES = r"""
import deft, os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(os.write(1, b"saved\n") and 0))
with deft.open() as session:
    session.barrier("all have come")
    os.write(1, b"up\n")
    while True:
        signal.pause()
"""


def test_workers_in_a_pod_that_is_deleted_may_save(tmp_path):
    within = ("unshare", "-Urpf", "--mount-proc", "--kill-child")
    if subprocess.run([*within, "true"], stderr=subprocess.DEVNULL).returncode != 0:
        pytest.skip("needs namespaces: the first process of one hears only what it has asked for")
    (tmp_path / "saves.py").write_text(SAVES)
    variables = {"TRAIN": f"{sys.executable} {tmp_path}/saves.py", "DEFT_WORLD_SIZE": "2"}
    with Pods(tmp_path).start(0, free_port("127.0.0.1"), 0, within, **variables) as pod:
        try:
            assert [pod.stdout.readline() for _ in range(2)] == ["up\n"] * 2
            [first] = Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split()
            os.kill(int(first), signal.SIGTERM)
            out, errors = pod.communicate(timeout=120)
        finally:
            pod.kill()
    assert (out, pod.returncode) == ("saved\n" * 2, 0), errors


def schema_faults(text: str, release: str) -> list[str]:
    """What Kubernetes of this release would refuse: unknown fields, and values of another type."""
    checker, yaml = pytest.importorskip("kubernetes_validate"), pytest.importorskip("yaml")
    faults = []
    for document in yaml.safe_load_all(text):
        try:
            checker.validate(document, release, strict=True)
        except checker.ValidationError as error:
            faults.append(f"{document['kind']}: {error.message}")
    return faults


@pytest.mark.parametrize("release", ["1.28", "1.34"])
def test_the_objects_of_kubernetes_have_the_fields_that_it_knows(release):
    for name in ("kubernetes.yaml", "kustomize/daemonset.yaml"):
        assert schema_faults((ROOT / "deploy" / name).read_text(), release) == [], name
    text = (ROOT / "deploy/kubernetes.yaml").read_text()
    spoiled = {"secretName": "secretNam", "completions: 2": 'completions: "2"', "clusterIP: None": "clusterIP: [1]"}
    for right, wrong in spoiled.items():
        assert len(schema_faults(text.replace(right, wrong), release)) == 1, wrong


def answers(address: str, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_the_daemonset_names_what_there_is_and_its_daemon_serves_the_probes(tmp_path):
    yaml = pytest.importorskip("yaml")
    folder = ROOT / "deploy/kustomize"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    pod = yaml.safe_load((folder / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    [daemon] = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert {mount["name"] for mount in daemon["volumeMounts"]} == set(volumes)
    assert volumes["configuration"]["configMap"]["name"] == kustomization["configMapGenerator"][0]["name"]
    assert {daemon["image"], pod["initContainers"][0]["image"]} == {kustomization["images"][0]["name"]}
    # An emptyDir belongs to root, and the daemon writes into folders of its own alone.
    [state] = [mount["mountPath"] for mount in daemon["volumeMounts"] if mount["name"] == "state"]
    [folder_of_traces] = [one["value"] for one in daemon["env"] if one["name"] == "STATE_DIRECTORY"]
    assert Path(folder_of_traces).parent == Path(state)
    probes = [daemon[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")]
    [address] = {f"{probe['host']}:{probe['port']}" for probe in probes}
    options = (folder / "deftd.conf").read_text()
    assert f"metrics = {address}\n" in options

    here = f"127.0.0.1:{free_port('127.0.0.1')}"
    (tmp_path / "deftd.conf").write_text(options.replace(address, here))
    (tmp_path / "key").write_text(run([BUILD / "bin/deft", "keygen"], environment()).stdout)
    (tmp_path / "key").chmod(0o440)
    moved = {
        "/run/deft/": f"{tmp_path}/",
        "$(NODE_IP):29610": f"127.0.0.1:{free_port('127.0.0.1')}",
        "/etc/deft-key/": f"{tmp_path}/",
        "/etc/deft/": f"{tmp_path}/",
    }
    words = [BUILD / "bin" / daemon["command"][0], *daemon["args"]]
    for before, after in moved.items():
        words[1:] = [word.replace(before, after) for word in words[1:]]
    clean = {name: value for name, value in environment().items() if not name.startswith("DEFT_")}
    process = subprocess.Popen(words, env=clean, stderr=subprocess.PIPE, text=True)
    try:
        for probe in probes:
            wait_until(lambda path=probe["path"]: process.poll() is not None or answers(here, path), what=probe["path"])
        assert process.poll() is None, process.stderr.read()
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=pod["terminationGracePeriodSeconds"])
    assert process.returncode == 0, errors


def test_kustomize_puts_the_parts_together():
    if not shutil.which("kubectl"):
        pytest.skip("there is no kubectl")
    done = run(["kubectl", "kustomize", ROOT / "deploy/kustomize"], environment())
    assert done.returncode == 0, done.stderr
    assert "image: registry.example/deft-train:0.1" in done.stdout and "namespace: deft" in done.stdout
    assert schema_faults(done.stdout, "1.34") == []


def test_a_pod_whose_daemon_cannot_start_ends(tmp_path):
    pod = Pods(tmp_path).start(0, free_port("127.0.0.1"), 0, POD_IP="192.0.2.1")
    _, errors = pod.communicate(timeout=120)
    assert pod.returncode == 1 and "192.0.2.1" in errors


def test_the_pytorch_example_trains(tmp_path):
    words = [sys.executable, BUILD / "bin/deftrun", "-np", "2", "--nodes", "2", sys.executable]
    done = run([*words, ROOT / "examples/torch/fashion_mnist.py", "--steps", "3"], environment(TMPDIR=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert "epoch 1, step 3/3: loss" in done.stdout and re.search(r"test accuracy \d+\.\d\d %", done.stdout), (
        done.stdout
    )
