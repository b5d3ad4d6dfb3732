"""What can be tested and timed with one GPU. Started by tests/gpu/run; a line a check, ends with 1 where one fails.

NCCL refuses two ranks of a communicator on one GPU ("Duplicate GPU detected"), so with one GPU its transfers between
workers cannot be run: then it is tested that both sides say so. With more GPUs training over it is tested, too.
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


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEFT_")}
    return kept | {"OMP_NUM_THREADS": "2"} | variables


class Job:
    """Two nodes of one worker each, on this machine."""

    def __init__(self, links, **options):
        self.folder = tempfile.TemporaryDirectory()
        self.variables = {"DEFT_LINKS": links, "DEFT_TIMEOUT": "60s"}
        self.variables |= {f"DEFT_{name.upper()}": str(value) for name, value in options.items()}
        self.addresses = [free_address(), free_address()]
        self.daemons = [self._daemon(node) for node in range(2)]

    def _daemon(self, node):
        read_end, write_end = os.pipe()
        libraries = os.environ.get("DEFT_GPU_LIBRARIES", "")
        path = os.pathsep.join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH", "")]))
        words = [f"{os.environ['DEFT_GPU_BIN']}/deftd", "--socket", self.socket(node), "--listen", self.addresses[node]]
        with open(f"{self.folder.name}/daemon{node}.log", "w") as log:
            daemon = subprocess.Popen(
                [*words, f"--ready_fd={write_end}"],
                env=environment(**self.variables, LD_LIBRARY_PATH=path),
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
        """What `task` gives in each of the workers; an error's text where it failed."""
        workers = []
        for rank in range(2):
            variables = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            variables |= {"DEFT_SOCKET": self.socket(rank), "DEFT_LEADER": self.addresses[0], **self.variables}
            out = f"{self.folder.name}/result{rank}"
            words = [sys.executable, __file__, "--worker", task, out]
            workers.append((subprocess.Popen(words, env=environment(**variables)), out))
        for worker, _ in workers:
            worker.wait(timeout=240)
        return [pickle.loads(Path(out).read_bytes()) for _, out in workers]

    def close(self):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait(timeout=20)
        self.folder.cleanup()


# ---- in the workers


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
    device = torch.device("cuda", hvd.rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    model = make_model(torch, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    times = []
    for step in range(STEPS):
        x, y = batch(torch, step, device)
        share = slice(hvd.rank() * 32, hvd.rank() * 32 + 32)
        began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[share]), y[share]).backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    optimizer.flush()
    parameters = {name: value.detach().cpu() for name, value in model.named_parameters()}
    hvd.shutdown()
    return parameters, sorted(times)[len(times) // 2]


def train_alone():
    import torch

    device = torch.device("cuda", 0)
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


def check_training(links, **options):
    import torch

    job = Job(links, **options)
    results = job.run("train")
    job.close()
    assert not any(isinstance(result, str) for result in results), "\n".join(map(str, results))
    (first, seconds), (second, _) = results
    for name, value in train_alone().items():
        assert torch.equal(first[name], second[name]), f"{name} has other bits on the two ranks"
        torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-4)
    return f"{seconds * 1e3:.2f} ms a step"


def check_one_gpu_twice():
    job = Job("nccl:lo")
    results = job.run("train")
    job.close()
    assert all(isinstance(result, str) and "nccl" in result for result in results), results
    return str(results[0]).strip().splitlines()[-1]


def main():
    import torch

    if not torch.cuda.is_available():
        print("no GPU that PyTorch can use: nothing is tested")
        return 2
    checks = [
        ("host links, fifo", lambda: check_training("gloo:lo", policy="fifo")),
        ("host links, bytescheduler", lambda: check_training("gloo:lo", policy="bytescheduler")),
        ("host links, worker-run", lambda: check_training("workertcp:lo", policy="p3")),
    ]
    if torch.cuda.device_count() > 1:
        checks += [
            ("NCCL, gradients on the GPU", lambda: check_training("nccl:lo", policy="bytescheduler")),
            ("NCCL and gloo", lambda: check_training("nccl:lo,gloo:lo", policy="p3")),
        ]
    else:
        checks.append(("two ranks on one GPU are refused by NCCL", check_one_gpu_twice))
    failed = 0
    for name, check in checks:
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
        sys.exit(main())
