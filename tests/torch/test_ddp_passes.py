"""What is a pass of DDP's buckets over backend="deft": models in turn, unused parameters, errors, checkpoints."""

import threading

import deft.torch as hvd
import pytest
import torch
import torch.distributed as dist
from c10d_groups import close_group, count_groups, open_group
from deft import BACKWARD, FORWARD, DeftError, world
from deft.torch.ddp_buckets import BucketGroup
from launching import free_port
from torch.distributed._functional_collectives import all_reduce, wait_tensor
from torch.utils.checkpoint import checkpoint


class Branching(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = torch.nn.Linear(20, width), torch.nn.Linear(20, width)
        self.last = torch.nn.Linear(width, 5)

    def forward(self, inputs, branch):
        return self.last((self.one if branch == 0 else self.two)(inputs))


def fail_in_backward():
    """A model whose backward ends by an error on all ranks, after some of its buckets. DDP then refuses it."""
    layers = torch.nn.Sequential(torch.nn.Linear(20, 9), torch.nn.Linear(9, 50), torch.nn.Linear(50, 5))
    model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.0001)
    inputs = torch.ones(8, 20).requires_grad_()
    middle = []
    layers[1].register_forward_pre_hook(lambda _, given: middle.append(given[0]))
    outputs = model(inputs)
    middle[0].register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        outputs.sum().backward()


def train_unusually(backend, port):
    """Two models in turn, whose first buckets are alike, unused parameters, two models in one backward; checkpoints."""
    open_group(port, backend)
    wrap = torch.nn.parallel.DistributedDataParallel
    torch.manual_seed(5)
    models = [wrap(Branching(50), bucket_cap_mb=0.001, find_unused_parameters=True) for _ in range(2)]
    models.append(wrap(torch.nn.Sequential(torch.nn.Linear(20, 9), torch.nn.Linear(9, 50), torch.nn.Linear(50, 5))))
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.05)
    samples = torch.Generator().manual_seed(hvd.rank())
    for step in range(10):
        inputs = torch.randn(8, 20, generator=samples)
        optimizer.zero_grad()
        if step == 5:
            fail_in_backward()
        if step < 8:
            models[step % 2](inputs, (step + hvd.rank() * (step // 4)) % 3 % 2).square().mean().backward()
        (models[2](inputs).square().mean() + (models[0](inputs, 0).mean() if step == 6 else 0)).backward()
        optimizer.step()
    models += [train_checkpointed(head) for head in (True, False)]
    train_twins()
    reduce_in_backward()
    result = [parameter.detach().numpy().copy() for model in models for parameter in model.parameters()]
    close_group()
    return result


class Checkpointed(torch.nn.Module):
    """Each block's backward is nested in the model's. Without a head there are no other gradients."""

    def __init__(self, head):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(20, 20) for _ in range(3))
        self.last = torch.nn.Linear(20, 5) if head else torch.nn.Tanh()

    def forward(self, inputs):
        for block in self.blocks:
            inputs = checkpoint(block, inputs, use_reentrant=True)
        return self.last(inputs)


def train_checkpointed(head):
    with count_groups() as groups:
        torch.manual_seed(6)
        model = torch.nn.parallel.DistributedDataParallel(Checkpointed(head), bucket_cap_mb=0.001)
        samples = torch.Generator().manual_seed(hvd.rank())
        for _ in range(6):
            inputs = torch.randn(8, 20, generator=samples).requires_grad_()
            model.zero_grad()
            model(inputs).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)
    assert len(groups) == (dist.get_backend() == "deft"), "one group for all buckets of a backward"
    return model


def train_twins():
    """Models that are alike, with a backward each, have a group each: what a codec leaves out is of one model."""
    with count_groups() as groups:
        twins = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5)) for _ in range(2)]
        for _ in range(4):
            for model in twins:
                model(torch.ones(1, 20)).sum().backward()
    assert len(groups) == 2 * (dist.get_backend() == "deft")


def reduced_by_the_script(grad):
    return wait_tensor(all_reduce(grad * (1 + dist.get_rank()), "sum", dist.group.WORLD))


def reduce_in_backward():
    """What a hook reduces by a functional collective, for which it waits at once, is no bucket among the others."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    layers[1].register_forward_pre_hook(lambda _, given: given[0].register_hook(reduced_by_the_script) and None)
    with count_groups() as groups:
        model = torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.00001)
        for _ in range(4):
            model.zero_grad()
            model(torch.ones(4)).sum().backward()
        expected = layers[1].weight.detach().sum(0) * 3
        torch.testing.assert_close(layers[0].bias.grad, expected)
    assert groups == ([4] if dist.get_backend() == "deft" else [])


def test_changing_buckets_and_unused_parameters(start):
    expected, _ = start(2).run(train_unusually, "gloo", free_port())
    first, second = start(2).run(train_unusually, "deft", free_port())
    for one, other, over_gloo in zip(first, second, expected):
        assert (one == other).all(), "replicas differ"
        assert one == pytest.approx(over_gloo, rel=1e-4, abs=1e-6)


def train_compiled(port):
    """torch's C++ calls the backend amid a compiled step, which must not trace it."""
    open_group(port)
    samples, layers = torch.Generator().manual_seed(hvd.rank()), torch.nn.Linear(4, 4)
    models = [torch.nn.parallel.DistributedDataParallel(layers) for _ in range(2)]
    models[1].register_comm_hook(None, hvd.ddp_hook)

    @torch.compile(backend="eager")
    def step(model, inputs):
        layers.zero_grad()
        model(inputs).square().mean().backward()

    with count_groups() as groups:
        for model in models:
            for _ in range(4):
                inputs = torch.randn(3, 4, generator=samples)
                own = torch.autograd.grad(layers(inputs).square().mean(), list(layers.parameters()))
                step(model, inputs)
                for parameter, expected in zip(layers.parameters(), hvd.grouped_allreduce(own), strict=True):
                    torch.testing.assert_close(parameter.grad, expected)
    close_group()
    return len(groups)


def test_a_compiled_step(start):
    assert start(2, stall_timeout="20s").run(train_compiled, free_port()) == [2, 2]


def tell_stages_of_groups():
    """The oldest group in use tells them. What cannot be told, as the job fails, keeps no bucket from its end."""
    told = []

    def stage(which, step):
        told.append((which, step))
        if which == FORWARD:
            raise DeftError(4, "the job fails")

    world.session().stage = stage
    groups = [BucketGroup([("bucket0", torch.float32, (1, 4))]) for _ in range(2)]
    for group in groups:
        told.clear()
        for one in groups:
            ended = threading.Event()
            one.send(0, torch.ones(4), lambda _view, _error, ended=ended: ended.set())
            assert ended.wait(60)
        step = groups.index(group)
        assert told == [(BACKWARD, step), (FORWARD, step + 1)]
        group.retire()
    return True


def test_stages_of_groups_of_buckets(start):
    assert all(start(2).run(tell_stages_of_groups))
