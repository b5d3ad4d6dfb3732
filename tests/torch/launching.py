"""Real daemons and real workers for the plugin's tests.

One daemon an emulated node, over loopback; workers are forked from one server process that has torch loaded already, so
a job costs milliseconds to start and its workers share nothing.
"""

import contextlib
import faulthandler
import importlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from multiprocessing import forkserver
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/process"))
from forked_worker import finish, start_script  # noqa: E402
from ports import free_port  # noqa: E402
from under_test import BUILD  # noqa: E402

PACKAGE = BUILD / "python"
DAEMON = BUILD / "bin" / "deftd"
JOB_SECONDS = 550  # of a job that hangs: at a load of 55 a good one of TensorFlow has taken more than 300

_context = multiprocessing.get_context("forkserver")
TORCH_MODULES = ("pytest", "torch._dynamo", "deft.torch", "small_models")
SCRIPT_MODULES = ("numpy", "torch._dynamo")  # before a script begins, which imports deft.torch itself


def start_worker_server(modules):
    """Starts the process from which workers are forked, with these modules loaded and this moment's environment."""
    _context.set_forkserver_preload(list(modules))
    forkserver.ensure_running()


class WorkerFailed(AssertionError):
    """A worker raised; the text holds what every worker printed. `errors[rank]` is the error's text or None."""

    def __init__(self, text, errors):
        super().__init__(text)
        self.errors = errors


def prepare_worker(variables, log):
    """A worker's output goes to `log`, and its environment has the options of its job."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(variables)


def await_all_workers(answer, gate):
    """On a busy machine imports of one rank take longer than a short timeout after those of another."""
    answer.send_bytes(b"")  # it has arrived
    with contextlib.suppress(EOFError):
        gate.recv_bytes()  # ends when the gate is closed, which opens it


def answer_with(hvd, function, arguments, answer):
    """Runs function(*arguments) between init() and shutdown() of a framework's package, and sends the result."""
    faulthandler.dump_traceback_later(JOB_SECONDS - 10, exit=True)
    try:
        hvd.init()
        result = function(*arguments)
        hvd.shutdown()
        answer.send_bytes(pickle.dumps((True, result)))
    except BaseException as error:
        traceback.print_exc()
        answer.send_bytes(pickle.dumps((False, f"{type(error).__name__}: {error}")))
        sys.stderr.flush()
        os._exit(1)  # without goodbye, as an uncaught exception ends a script


def work(package, prepare, function, arguments, variables, log, answer, gate):
    """A worker's life. `prepare(function)` is called when `package` is imported."""
    prepare_worker(variables, log)
    hvd = importlib.import_module(package)
    prepare(function)
    await_all_workers(answer, gate)
    answer_with(hvd, function, arguments, answer)


def await_arrivals(answers):
    """Waits until each worker has called await_all_workers() or has ended."""
    deadline = time.monotonic() + JOB_SECONDS
    for receive in answers:
        with contextlib.suppress(EOFError):
            if receive.poll(max(0.0, deadline - time.monotonic())):
                receive.recv_bytes()


def limit_torch(_function):
    import torch

    torch.set_num_threads(1)


def torchrun_variables(rank, workers, each, port):
    """`each`: workers a node."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_RANK": str(rank % each),
        "LOCAL_WORLD_SIZE": str(each),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": str(PACKAGE),
        "OMP_NUM_THREADS": "1",
    }


def run_ranks(words, environments, modules=SCRIPT_MODULES, seconds=JOB_SECONDS):
    """Runs a script with its arguments once in each environment, as a launcher does; gives (status, output) of each."""
    ranks = [start_script([str(word) for word in words], environment, modules) for environment in environments]
    return finish(ranks, seconds)


class Cluster:
    """`nodes` daemons. run() starts a job on them and gives each rank's result.

    policy="knapsack 0@1" pins a plan; this one delays nothing, so it gives what other policies give. A subclass for
    another framework names its package, and what a worker does after the import.
    """

    package = "deft.torch"
    script_modules = SCRIPT_MODULES
    prepare = staticmethod(limit_torch)

    def __init__(self, folder, nodes, **options):
        self.folder = Path(folder)
        self.nodes = nodes
        policy, _, plan = options.get("policy", "").partition(" ")
        options = {"max_staleness_steps": 16, **options, "policy": policy, "plan": plan} if plan else options
        self.environment = {f"DEFT_{name.upper()}": str(value) for name, value in options.items()}
        self.environment.setdefault("DEFT_TIMEOUT", "60s")
        self.environment.setdefault("DEFT_LINKS", "gloo:lo")
        self.jobs = 0
        self.daemons = []
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(nodes)]
        for node, address in enumerate(self.addresses):
            self._start_daemon(node, address)

    def _start_daemon(self, node, address):
        read_end, write_end = os.pipe()
        log = (self.folder / f"daemon{node}.log").open("w")
        self.daemons.append(
            subprocess.Popen(
                [DAEMON, "--socket", self.socket(node), "--listen", address, f"--ready_fd={write_end}"],
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
                pass_fds=[write_end],
            )
        )
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            assert ready.readline() == "ready\n", (self.folder / f"daemon{node}.log").read_text()

    def restart_daemon(self, node):
        """Starts the daemon of `node`, which has ended, at the same address."""
        self._start_daemon(node, self.addresses[node])
        self.daemons[node] = self.daemons.pop()

    def socket(self, node):
        return str(self.folder / f"node{node}.sock")

    def variables(self, rank, workers, job):
        """What a launcher gives to this rank."""
        each = workers // self.nodes
        return {
            **self.environment,
            "DEFT_SOCKET": self.socket(rank // each),
            "DEFT_LEADER": self.addresses[0],
            "DEFT_RANK": str(rank),
            "DEFT_WORLD_SIZE": str(workers),
            "DEFT_LOCAL_RANK": str(rank % each),
            "DEFT_LOCAL_SIZE": str(each),
            "DEFT_JOB": job,
        }

    def run(self, function, *arguments, workers=2, **options):
        """Calls function(*arguments) in `workers` workers after init(); gives the results in the order of ranks."""
        job = self._new_job()
        started = []
        gate, opener = _context.Pipe(duplex=False)
        extra = {f"DEFT_{name.upper()}": str(value) for name, value in options.items()}
        for rank in range(workers):
            receive, send = _context.Pipe(duplex=False)
            log = self.folder / f"{job}.rank{rank}.log"
            variables = {**self.variables(rank, workers, job), **extra}
            life = (self.package, self.prepare, function, arguments, variables, str(log), send, gate)
            process = _context.Process(target=work, args=life)
            process.start()
            send.close()
            started.append((process, receive, log))
        await_arrivals([receive for _, receive, _ in started])
        opener.close()
        gate.close()
        return self._collect(job, started)

    def _collect(self, job, started):
        deadline = time.monotonic() + JOB_SECONDS
        outcomes = []
        for process, receive, _ in started:
            outcome = (False, "no answer within the time of the test")
            with contextlib.suppress(EOFError):
                if receive.poll(max(0.0, deadline - time.monotonic())):
                    outcome = pickle.loads(receive.recv_bytes())
                    process.join(60)
            if process.is_alive():
                process.kill()
            process.join()
            outcomes.append(outcome)
        if all(good for good, _ in outcomes):
            return [result for _, result in outcomes]
        errors = [None if good else text for good, text in outcomes]
        logs = [f"--- rank {rank}\n{log.read_text()}" for rank, (_, _, log) in enumerate(started)]
        for node in range(self.nodes):
            said = (self.folder / f"daemon{node}.log").read_text().splitlines()
            logs += [f"--- daemon {node}", *[line for line in said if f"[{job}]" in line]]
        raise WorkerFailed("\n".join([str(errors), *logs]), errors)

    def run_script(self, path, *arguments, workers=2):
        """Runs a script as a launcher of Deft does; gives (status, output) of each rank."""
        job = self._new_job()
        environments = [
            {**os.environ, **self.variables(rank, workers, job), "PYTHONPATH": str(PACKAGE)} for rank in range(workers)
        ]
        return run_ranks([path, *arguments], environments, self.script_modules)

    def torchrun_environments(self, workers=2):
        """The environment of each rank of a new job, with torchrun's variables."""
        job, port = self._new_job(), free_port()
        return [
            {
                **os.environ,
                **{
                    n: value
                    for n, value in self.variables(rank, workers, job).items()
                    if not n.endswith(("RANK", "SIZE"))
                },
                **torchrun_variables(rank, workers, workers // self.nodes, port),
            }
            for rank in range(workers)
        ]

    def run_as_torchrun(self, path, *arguments, workers=2):
        """Runs a script with torchrun's variables; gives (status, output) of each rank."""
        return run_ranks([path, *arguments], self.torchrun_environments(workers), self.script_modules)

    def _new_job(self):
        self.jobs += 1
        return f"job{self.jobs}"

    def close(self):
        """Ends the daemons; each must end by itself."""
        for daemon in self.daemons:
            daemon.send_signal(signal.SIGTERM)
        try:
            for node, daemon in enumerate(self.daemons):
                status = daemon.wait(timeout=60)
                log = (self.folder / f"daemon{node}.log").read_text()
                assert status == 0, f"daemon {node} ended with {status}:\n{log}"
        finally:
            for daemon in self.daemons:
                if daemon.poll() is None:
                    daemon.kill()
                    daemon.wait()
