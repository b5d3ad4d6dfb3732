"""How each kind of scheme trains: alone, through PyTorch DDP, through Deft.

A trainer is made inside a worker from its setting: kind (a key of TRAINERS), model, data, batch, rank, world, workers
(a node), learning_rate, schedule, steps, seed, passes, layers (to be replayed, or None), for ddp and fsdp2 store, for
ddp bucket_mib, hook and options, for deft packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable

import torch
import torch._dynamo  # the first optimizer imports it, for seconds; here it is imported once, before the forks
import torch.distributed
import torch.nn.parallel
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from lab import data, layer_times
from lab.catalogue import MODELS
from lab.datasets import loss as loss_of
from lab.datasets import open_dataset
from lab.models import MAKERS, make_optimizer
from lab.replay import Blank, Replay
from lab.schedule import learning_rate_factor
from lab.schemes import POWERSGD
from lab.timed_steps import timed_steps


class Updates:
    """Counts how often the parameters are updated, whole or a layer at a time.

    Each update of the lab's optimizers (SGD with momentum, Adam without weight decay) writes a parameter once, and
    nothing else writes it while training; so steps that only add up gradients, and parts of the model that are updated
    later than others, are counted as what they are.
    """

    def __init__(self, model: nn.Module):
        self._parameters = list(model.parameters())
        self._seen = self._versions()

    def _versions(self) -> list[int]:
        return [parameter._version for parameter in self._parameters]

    def take(self) -> float:
        """The updates since the last call."""
        before, self._seen = self._seen, self._versions()
        written = [now - then for now, then in zip(self._seen, before, strict=True)]
        total = sum(p.numel() for p in self._parameters)
        return sum(count * p.numel() for count, p in zip(written, self._parameters, strict=True)) / total


class Trainer:
    """Trains alone; the other kinds of training change only how gradients are averaged."""

    def __init__(self, setting: dict, told: Callable[[dict], None]):
        torch.manual_seed(setting["seed"])
        self._setting, self._tell = setting, told
        description = MODELS[setting["model"]]
        self.model = MAKERS[setting["model"]]()
        self._dataset = open_dataset(description.dataset, setting["data"])
        if setting["layers"]:
            self.model = Replay(self.model, setting["layers"], setting["rank"])
            self._dataset = Blank(self._dataset.samples)
        self.updates = Updates(self.model)
        self.optimizer = make_optimizer(description.optimizer, self.model, setting["learning_rate"])
        self._shards = data.Shards.of(setting, self._dataset.samples)
        self.gradient_bytes = sum(p.numel() * p.element_size() for p in self.model.parameters())
        self._passes = setting["passes"]
        self._step = 0
        self.wrap()

    def wrap(self) -> None:
        """Puts the model or the optimizer into the scheme's wrapper."""

    def settle(self) -> None:
        """Waits for everything that training has started."""

    def close(self) -> None:
        """Leaves the other workers in peace."""

    def adding_up(self) -> contextlib.AbstractContextManager:
        """Around a step whose gradients wait for those of later ones."""
        return contextlib.nullcontext()

    def report(self, loss: torch.Tensor) -> None:
        """Tells a step's loss to whoever judges by it."""

    def plain_model(self) -> nn.Module:
        return self.model

    # Training

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        index = self._shards.indices(self._step)
        self._step += 1
        return self._dataset.batch(index)

    def train_step(self) -> float:
        """One forward and backward; every `passes`-th updates the parameters."""
        place = self._step % self._passes
        self._set_learning_rate()
        inputs, targets = self.next_batch()
        if place == 0:
            self.optimizer.zero_grad()
        last = place + 1 == self._passes
        with contextlib.nullcontext() if last else self.adding_up():
            loss = loss_of(self.model(inputs), targets)
            (loss if self._passes == 1 else loss / self._passes).backward()
        if last:
            self.report(loss)
            self.optimizer.step()
        return loss.item()

    def _set_learning_rate(self) -> None:
        setting = self._setting
        scaled = setting["learning_rate"] * learning_rate_factor(setting["schedule"], self._step, setting["steps"])
        for group in self.optimizer.param_groups:
            group["lr"] = scaled

    def run(self, warmup: int, steps: int) -> dict:
        return timed_steps(warmup, steps, self.train_step, self.settle, self.updates.take, self._reached)

    def _reached(self, step: int) -> None:
        if self._setting["rank"] == 0:
            self._tell({"step": step})

    def evaluate(self) -> dict:
        """On this rank's share of the held-out samples; together the ranks see each sample once."""
        self.settle()
        module, correct, seen, total = self.plain_model(), 0, 0, 0.0
        module.eval()
        with torch.no_grad():
            for inputs, targets in self._dataset.held_out(self._setting["rank"], self._setting["world"]):
                outputs = module(inputs)
                correct += int((outputs.argmax(-1) == targets).sum())
                total += float(loss_of(outputs, targets)) * targets.numel()
                seen += targets.numel()
        module.train()
        return {"correct": correct, "seen": seen, "loss_sum": total}

    def measure_layers(self, steps: int) -> dict:
        """A step's time, layer by layer."""
        watch = layer_times.Watch(self.model)
        try:
            return {"layers": [self._measured_step(watch) for _ in range(steps)]}
        finally:
            watch.remove()

    def _measured_step(self, watch: layer_times.Watch) -> dict:
        watch.begin()
        inputs, targets = self.next_batch()
        self.optimizer.zero_grad()
        watch.forward()
        loss = loss_of(self.model(inputs), targets)
        watch.backward()
        loss.backward()
        watch.update()
        self.optimizer.step()
        loss.item()
        return watch.end()

    def digest(self) -> str:
        self.settle()
        digest = hashlib.sha256()
        for parameter in self.plain_model().parameters():
            digest.update(parameter.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()


class ProcessGroupTrainer(Trainer):
    """Trains in a process group of torch.distributed."""

    backend = "gloo"

    def join_group(self) -> None:
        setting = self._setting
        torch.distributed.init_process_group(
            self.backend, f"tcp://{setting['store']}", rank=setting["rank"], world_size=setting["world"]
        )

    def close(self) -> None:
        torch.distributed.destroy_process_group()


class DdpTrainer(ProcessGroupTrainer):
    def wrap(self) -> None:
        setting = self._setting
        self.join_group()
        parallel = torch.nn.parallel.DistributedDataParallel
        self.model = parallel(self.model, bucket_cap_mb=setting["bucket_mib"], broadcast_buffers=False)
        if setting["hook"] == "fp16":
            self.model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        elif setting["hook"] == "powersgd":
            chosen = POWERSGD | {name: int(value) for name, value in setting["options"]}
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=chosen["rank"], start_powerSGD_iter=chosen["start"]
            )
            self.model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def adding_up(self) -> contextlib.AbstractContextManager:
        return self.model.no_sync()

    def plain_model(self) -> nn.Module:
        return self.model.module


class DdpOverDeftTrainer(DdpTrainer):
    """The same script with another backend."""

    backend = "deft"

    def join_group(self) -> None:
        sys.path.insert(0, self._setting["packages"])
        import deft.torch  # noqa: F401  makes the backend known

        super().join_group()


class FsdpTrainer(ProcessGroupTrainer):
    """FSDP2: each layer is sharded between a node's workers. FSDP2 averages the shards' gradients between nodes."""

    def wrap(self) -> None:
        self.join_group()
        shape = (self._setting["world"] // self._setting["workers"], self._setting["workers"])
        mesh = self.choose_mesh(init_device_mesh("cpu", shape, mesh_dim_names=("node", "shard")))
        layers = [layer for layer in self.model.children() if any(True for _ in layer.parameters())]
        for layer in [*layers, self.model]:
            fully_shard(layer, mesh=mesh)
        # The parameters are others now.
        self.updates = Updates(self.model)
        kind = MODELS[self._setting["model"]].optimizer
        self.optimizer = make_optimizer(kind, self.model, self._setting["learning_rate"])

    def choose_mesh(self, mesh: DeviceMesh) -> DeviceMesh:
        return mesh

    def digest(self) -> str:
        digest = hashlib.sha256()
        for parameter in self.model.parameters():
            digest.update(parameter.full_tensor().detach().numpy().tobytes())
        return digest.hexdigest()


class FsdpOverDeftTrainer(FsdpTrainer):
    """The workers that hold the same shard, one a node, are a job of Deft."""

    def wrap(self) -> None:
        sys.path.insert(0, self._setting["packages"])
        import deft.torch as deft

        node, shard = divmod(self._setting["rank"], self._setting["workers"])
        nodes = self._setting["world"] // self._setting["workers"]
        deft.init(job=f"fsdp2.shard{shard}", rank=node, world_size=nodes, local_rank=0, local_size=1)
        super().wrap()
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.set_all_reduce_hook(deft.allreduce_)

    def choose_mesh(self, mesh: DeviceMesh) -> DeviceMesh:
        return mesh["shard"]

    def close(self) -> None:
        import deft.torch as deft

        deft.shutdown()
        super().close()


class DeftTrainer(Trainer):
    def wrap(self) -> None:
        sys.path.insert(0, self._setting["packages"])
        import deft.torch as deft

        deft.init()
        deft.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = deft.DistributedOptimizer(
            self.optimizer, named_parameters=self.model.named_parameters(), backward_passes_per_step=self._passes
        )

    def report(self, loss: torch.Tensor) -> None:
        if not self._setting["layers"]:  # a replay has no loss that says something
            self.optimizer.report_loss(loss)

    def settle(self) -> None:
        self.optimizer.flush()

    def close(self) -> None:
        import deft.torch as deft

        deft.shutdown()


TRAINERS = {
    "compute": Trainer,
    "ddp": DdpTrainer,
    "fsdp2": FsdpTrainer,
    "deft": DeftTrainer,
    "deft-ddp": DdpOverDeftTrainer,
    "deft-fsdp2": FsdpOverDeftTrainer,
}
