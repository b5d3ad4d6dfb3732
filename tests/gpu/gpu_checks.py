"""Tests and times Deft with one GPU. Started by tests/gpu/run. A line for each check; ends with 1 if one fails.

NCCL wants a GPU for each rank. With one GPU a rank alone trains over it, two ranks are refused, which both sides must
say, and from NCCL 2.30 on, which can be told to let ranks share a GPU, two ranks train. With more GPUs each rank has
its own.
--cpu leaves the GPU out: the rest tests this program and the package that carries it.
"""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

STEPS = 20
SHARED = {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}  # known to NCCL from 2.30 on


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEFT_")}
    return kept | {"OMP_NUM_THREADS": "1"} | variables


class Job:
    """Nodes of one worker each, on this machine."""

    def __init__(self, links, nodes=2, **variables):
        self.folder = tempfile.TemporaryDirectory()
        self.variables = {"DEFT_LINKS": links, "DEFT_TIMEOUT": "60s", **variables}
        self.addresses = [free_address() for _ in range(nodes)]
        self.daemons = []
        self.daemons += (self._daemon(node) for node in range(nodes))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait(timeout=20)
        self.folder.cleanup()

    def _daemon(self, node):
        read_end, write_end = os.pipe()
        libraries = os.environ.get("DEFT_GPU_LIBRARIES", "")
        path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH", "")]))
        words = [f"{os.environ['DEFT_GPU_BIN']}/deftd", "--socket", self.socket(node), "--listen", self.addresses[node]]
        with open(f"{self.folder.name}/daemon{node}.log", "w") as log:
            daemon = subprocess.Popen(
                [*words, f"--ready_fd={write_end}"],
                env=environment(**self.variables, LD_LIBRARY_PATH=path, STATE_DIRECTORY=f"{self.folder.name}/state"),
                stdout=log,
                stderr=log,
                pass_fds=[write_end],
            )
        os.close(write_end)
        with os.fdopen(read_end) as ready:
            assert ready.readline() == "ready\n", Path(f"{self.folder.name}/daemon{node}.log").read_text()
        return daemon

    def socket(self, node):
        return f"{self.folder.name}/node{node}.sock"

    def run(self, task):
        """What `task` gives in each of the workers; an error's text if it failed."""
        workers = []
        for rank in range(len(self.daemons)):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(self.daemons)),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
            }
            variables |= {"DEFT_SOCKET": self.socket(rank), "DEFT_LEADER": self.addresses[0], **self.variables}
            out = f"{self.folder.name}/result{rank}"
            words = [sys.executable, __file__, "--worker", task, out]
            workers.append((subprocess.Popen(words, env=environment(**variables)), out))
        try:
            return [self._result(*worker) for worker in workers]
        finally:
            for worker, _ in workers:
                worker.kill()

    def _result(self, worker, out):
        status = worker.wait(timeout=240)
        return pickle.loads(Path(out).read_bytes()) if os.path.exists(out) else f"a worker ended with {status}"


# ---- in the workers


def device_of(torch, rank):
    """The rank's GPU, made current; after init(), as scripts for Horovod do it."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def make_model(torch, device):
    torch.manual_seed(1)
    wide = [torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512), torch.nn.ReLU()]
    return torch.nn.Sequential(*wide, torch.nn.Linear(512, 10)).to(device)


def batch(torch, step, device):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(64, 512, generator=generator)
    return x.to(device), torch.randint(0, 10, (64,), generator=generator).to(device)


def train_worker():
    import deft.torch as hvd
    import torch

    hvd.init()
    device = device_of(torch, hvd.rank())
    model = make_model(torch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    times = []
    for step in range(STEPS):
        x, y = batch(torch, step, device)
        samples = 64 // hvd.size()
        share = slice(hvd.rank() * samples, (hvd.rank() + 1) * samples)
        began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[share]), y[share]).backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    optimizer.flush()
    parameters = {name: value.detach().cpu() for name, value in model.named_parameters()}
    hvd.shutdown()
    return parameters, sorted(times)[len(times) // 2]


def train_alone():
    import torch

    device = device_of(torch, 0)
    model = make_model(torch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        x, y = batch(torch, step, device)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: value.detach().cpu() for name, value in model.named_parameters()}


TASKS = {"train": train_worker}


def worker(task, out):
    try:
        result = TASKS[task]()
    except Exception:
        result = traceback.format_exc()
    Path(out).write_bytes(pickle.dumps(result))


# ---- the checks


def check_training(links, **variables):
    import torch

    with Job(links, **variables) as job:
        results = job.run("train")
    assert not any(isinstance(result, str) for result in results), "\n".join(map(str, results))
    expected = train_alone()
    for parameters, _ in results:
        for name, value in expected.items():
            assert torch.equal(parameters[name], results[0][0][name]), f"{name} has other bits on another rank"
            torch.testing.assert_close(parameters[name], value, rtol=1e-3, atol=1e-4)
    return f"{results[0][1] * 1e3:.2f} ms a step"


def check_one_gpu_twice():
    with Job("nccl:lo", DEFT_TIMEOUT="20s") as job:
        results = job.run("train")
    assert all(isinstance(result, str) and "nccl" in result for result in results), results
    return str(results[0]).strip().splitlines()[-1]


def training(name, links, **variables):
    return name, lambda: check_training(links, **variables)


def all_checks(torch, gpus):
    checks = [
        training("host links, fifo", "gloo:lo", DEFT_POLICY="fifo"),
        training("host links, bytescheduler", "gloo:lo", DEFT_POLICY="bytescheduler"),
        training("host links, worker-run", "tcp:lo", DEFT_POLICY="p3"),
    ]
    if gpus == 0:
        return checks
    checks.append(training("NCCL, one rank alone", "nccl:lo", nodes=1))
    if gpus == 1:
        checks.append(("two ranks on one GPU are refused by NCCL", check_one_gpu_twice))
    if gpus > 1 or torch.cuda.nccl.version() >= (2, 30):
        shared = {} if gpus > 1 else SHARED
        checks += [
            training("NCCL, gradients on the GPU", "nccl:lo", DEFT_POLICY="bytescheduler", **shared),
            training("NCCL and gloo", "nccl:lo,gloo:lo", DEFT_POLICY="p3", **shared),
        ]
    return checks


def main(words):
    try:
        import torch
    except ImportError as error:
        print(f"there is no PyTorch: nothing is tested ({error})")
        return 2
    gpus = 0 if words == ["--cpu"] else torch.cuda.device_count()
    if gpus == 0 and words != ["--cpu"]:
        print("no GPU that PyTorch can use: nothing is tested (--cpu: without one)")
        return 2
    failed = 0
    for name, check in all_checks(torch, gpus):
        try:
            print(f"ok      {name}: {check()}", flush=True)
        except Exception as error:
            failed += 1
            print(f"FAILED  {name}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:4])
    else:
        sys.exit(main(sys.argv[1:]))
