"""Parameters of all kinds behind an optimizer: unused, grouped, frozen, of several dtypes, sparse."""

import deft.torch as hvd
import pytest
import torch
from small_models import (
    CLASSES,
    FEATURES,
    assert_close,
    assert_same_everywhere,
    batches,
    check,
    loss_of,
    make,
    overlaps,
    own_share,
    parameters,
)
from torch import nn
from torch.nn import functional

STEPS = 6
POLICIES = ["fifo", "bytescheduler"]
ALL = [*POLICIES, "knapsack 0@1"]  # the ways of delayed updates, without a delay


# ---- parameters without gradients


class Branches(nn.Module):
    """Uses one of three branches, as its caller says."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(FEATURES, CLASSES) for _ in range(3))
        self.never = nn.Linear(5, 5)
        self.to(dtype)

    def forward(self, x, branch):
        return self.branches[branch](x)


def train_branches():
    """Each rank takes another branch; the averages are complete when backward() returns."""
    model = make(Branches)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    alone = make(Branches)
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for count, (x, y) in enumerate(batches(STEPS)):
        alone_optimizer.zero_grad()
        parts = list(zip(x.chunk(hvd.size()), y.chunk(hvd.size())))
        loss = sum(functional.cross_entropy(alone(a, (count + r) % 3), b) for r, (a, b) in enumerate(parts))
        (loss / hvd.size()).backward()
        optimizer.zero_grad()
        a, b = parts[hvd.rank()]
        functional.cross_entropy(model(a, (count + hvd.rank()) % 3), b).backward()
        if not overlaps(optimizer):
            for mine, whole in zip(model.parameters(), alone.parameters()):
                torch.testing.assert_close(mine.grad, torch.zeros_like(mine) if whole.grad is None else whole.grad)
        alone_optimizer.step()
        optimizer.step()
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", POLICIES)
def test_parameters_unused_on_some_ranks(start, policy):
    assert all(start(2, policy=policy).run(train_branches))


def uneven():
    """A rank that has no batch left still takes part in step()."""
    model = make()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    alone = make()
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for count, (x, y) in enumerate(batches(STEPS)):
        optimizer.zero_grad()
        alone_optimizer.zero_grad()
        (loss_of(alone, x, y) / (2 if count in (0, 4) else 1)).backward()
        alone_optimizer.step()
        if count not in (0, 4) or hvd.rank() == 0:
            loss_of(model, x, y).backward()
        optimizer.step()
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", ALL)
def test_a_rank_without_a_batch_takes_part_in_step(start, policy):
    assert all(start(2, policy=policy).run(uneven))


class TwoHeads(nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.left = nn.Linear(FEATURES, CLASSES)
        self.right = nn.Linear(FEATURES, CLASSES)
        self.to(dtype)


def two_losses():
    """Two backwards a step, each for parameters of its own."""
    model, alone = make(TwoHeads), make(TwoHeads)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for x, y in batches(STEPS):
        for net, opt, (a, b) in ((alone, alone_optimizer, (x, y)), (model, optimizer, own_share(x, y))):
            opt.zero_grad()
            functional.cross_entropy(net.left(a), b).backward()
            functional.cross_entropy(net.right(a), b).backward()
            opt.step()
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", POLICIES)
def test_two_losses_over_different_parameters(start, policy):
    assert all(start(2, policy=policy).run(two_losses))


class Hollow(nn.Module):
    """Has parameters without elements, which get gradients all the same."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.none = nn.Parameter(torch.empty(0, FEATURES))
        self.last = nn.Linear(FEATURES, CLASSES)
        self.to(dtype)

    def forward(self, x):
        return self.last(torch.cat([self.none, x]))


def train_hollow():
    model, alone = make(Hollow), make(Hollow)
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
    alone_optimizer = torch.optim.Adam(alone.parameters(), lr=0.01)
    for x, y in batches(STEPS):
        for net, opt, (a, b) in ((alone, alone_optimizer, (x, y)), (model, optimizer, own_share(x, y))):
            opt.zero_grad()
            loss_of(net, a, b).backward()
            opt.step()
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", ALL)
def test_parameters_without_elements(start, policy):
    assert all(start(2, policy=policy).run(train_hollow))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(FEATURES, CLASSES)
        self.right = nn.Linear(FEATURES, CLASSES)
        self.table = nn.Embedding(5, CLASSES, sparse=True)
        self.extra = nn.Parameter(torch.ones(3))


def sum_two_losses(compression, sparse):
    """The second sum leaves alone what the first has summed, also on a rank that had no gradient of it."""
    model, alone = make(Heads), make(Heads)
    for net in (model, alone):
        net.table.weight.requires_grad_(sparse)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression, op=hvd.Sum
    )
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for x, y in batches(STEPS):
        for net, opt, (a, b) in ((alone, alone_optimizer, (x, y)), (model, optimizer, own_share(x, y))):
            ranks = hvd.size() if net is alone else 1
            opt.zero_grad()
            first = ranks * functional.cross_entropy(net.left(a) + (net.table(b % 5) if sparse else 0), b)
            if net is alone or hvd.rank() == 1:
                first = first + net.extra.square().sum()
            first.backward()
            (ranks * functional.cross_entropy(net.right(a), b)).backward()
            opt.step()
    optimizer.flush()
    assert_same_everywhere(parameters(model))
    halves = compression is hvd.Compression.fp16
    assert_close(parameters(model), parameters(alone), *((1e-2, 1e-3) if halves else ()))
    return overlaps(optimizer)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("compression", [hvd.Compression.none, hvd.Compression.fp16])
@pytest.mark.parametrize("sparse", [False, True])
def test_two_losses_are_summed_once_each(start, policy, compression, sparse):
    found = start(2, policy=policy).run(sum_two_losses, compression, sparse)
    assert found == [policy == "bytescheduler" and not sparse] * 2


# ---- groups, freezing, several optimizers


def groups_and_frozen():
    def build_groups(model):
        model.first.weight.requires_grad_(False)
        return [
            {"params": [model.first.weight, model.first.bias, model.gain], "lr": 0.02},
            {"params": [*model.wide.parameters(), *model.narrow.parameters()], "weight_decay": 0.01},
            {"params": [*model.last.parameters(), *model.norm.parameters(), *model.attention.parameters()]},
        ]

    model, alone = make(), make()
    optimizer = torch.optim.SGD(build_groups(model), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=STEPS + 1)  # made before the wrapping
    distributed = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    assert distributed is optimizer and isinstance(optimizer, torch.optim.SGD) and type(optimizer).__name__ == "SGD"
    alone_optimizer = torch.optim.SGD(build_groups(alone), lr=0.1, momentum=0.9)
    alone_scheduler = torch.optim.lr_scheduler.OneCycleLR(alone_optimizer, 0.2, total_steps=STEPS + 1)
    for x, y in batches(STEPS):
        for net, opt, sched, (a, b) in (
            (alone, alone_optimizer, alone_scheduler, (x, y)),
            (model, optimizer, scheduler, own_share(x, y)),
        ):
            opt.zero_grad()
            loss_of(net, a, b).backward()
            opt.step()
            sched.step()
    check(model, optimizer, parameters(alone))
    assert torch.equal(model.first.weight, make().first.weight), "the frozen weight moved"
    with pytest.raises(ValueError, match="cannot be added"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    model.first.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="did not require one"):
        for x, y in batches(2):
            loss_of(model, x, y).backward()
            optimizer.step()
    return True


@pytest.mark.parametrize("policy", ALL)
def test_parameter_groups_schedulers_and_frozen_parameters(start, policy):
    assert all(start(2, policy=policy).run(groups_and_frozen))


def adversaries(passes):
    """Two models against each other, as in a GAN: one's loss goes through the other."""

    def play(discriminator, generator, d_optimizer, g_optimizer, share):
        for x, _ in batches(STEPS):
            (a,) = share(x)
            discriminator.zero_grad()  # the model's own: the optimizer does not hear of it
            functional.softplus(-discriminator(a)).mean().backward()
            functional.softplus(discriminator(generator(a).detach())).mean().backward()
            d_optimizer.step()
            g_optimizer.zero_grad()
            functional.softplus(-discriminator(generator(a))).mean().backward()
            g_optimizer.step()

    def build():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 1)), nn.Linear(FEATURES, FEATURES)

    one, other = build(), build()
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4) for model in one]
    play(*one, *optimizers, lambda x: [x])
    distributed = [
        hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-4),
            named_parameters=model.named_parameters(),
            backward_passes_per_step=k,
        )
        for model, k in zip(other, (passes, 1))
    ]
    play(*other, *distributed, own_share)
    for mine, whole, optimizer in zip(other, one, distributed):
        check(mine, optimizer, parameters(whole))
    return True


@pytest.mark.parametrize("policy", ALL)
def test_several_optimizers(start, policy):
    assert all(start(2, policy=policy).run(adversaries, 2))


def mixed_dtypes():
    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(FEATURES, 9)
            self.b = nn.Linear(9, 9).to(torch.bfloat16)
            self.c = nn.Linear(9, CLASSES).to(torch.float64)

        def forward(self, x):
            return self.c(self.b(self.a(x).to(torch.bfloat16)).double())

    model, alone = make(Several), make(Several)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for x, y in batches(STEPS):
        for net, opt in ((alone, alone_optimizer), (model, optimizer)):
            opt.zero_grad()
            loss_of(net, x, y).backward()  # the same batch on all ranks
            opt.step()
    optimizer.flush()
    for name, value in parameters(alone).items():
        assert torch.equal(value, parameters(model)[name]), name
    return True


@pytest.mark.parametrize("policy", ALL)
def test_several_dtypes_in_one_optimizer(start, policy):
    assert all(start(2, policy=policy).run(mixed_dtypes))


class Words(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.embedding = nn.Embedding(50, 6, sparse=sparse)
        self.out = nn.Linear(6, CLASSES)

    def forward(self, words):
        return self.out(self.embedding(words).mean(1))


def train_words(sparse_as_dense):
    model, alone = make(Words, sparse=True), make(Words, sparse=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), sparse_as_dense=sparse_as_dense
    )
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _, y in batches(STEPS):
        words = torch.arange(8 * 4).reshape(8, 4) * int(y.sum()) % 50
        for net, opt, (a, b) in ((alone, alone_optimizer, (words, y)), (model, optimizer, own_share(words, y))):
            opt.zero_grad()
            functional.cross_entropy(net(a), b).backward()
            opt.step()
        assert (
            overlaps(optimizer)
            or model.embedding.weight.grad is None
            or (model.embedding.weight.grad.is_sparse != sparse_as_dense)
        )
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("sparse_as_dense", [True, False])
def test_sparse_gradients(start, policy, sparse_as_dense):
    assert all(start(2, policy=policy).run(train_words, sparse_as_dense))


class OnlyWords(nn.Module):
    """All parameters have sparse gradients."""

    def __init__(self, sparse):
        super().__init__()
        self.embedding = nn.Embedding(50, CLASSES, sparse=sparse)

    def forward(self, words):
        return self.embedding(words).mean(1)


def train_only_words(named):
    model, alone = make(OnlyWords, sparse=True), make(OnlyWords, sparse=False)
    names = model.named_parameters() if named else None
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), names)
    alone_optimizer = torch.optim.SGD(alone.parameters(), lr=0.5)
    for _, y in batches(STEPS):
        words = torch.arange(8 * 4).reshape(8, 4) * int(y.sum()) % 50
        for net, opt, (a, b) in ((alone, alone_optimizer, (words, y)), (model, optimizer, own_share(words, y))):
            opt.zero_grad()
            functional.cross_entropy(net(a), b).backward()
            opt.step()
    return check(model, optimizer, parameters(alone))


def train_with_sparse_adam():
    """It takes sparse gradients alone, so those that were summed as dense ones become sparse again."""
    for sparse_as_dense in (False, True):
        model, alone = (make(OnlyWords, sparse=True).double() for _ in range(2))
        optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), sparse_as_dense=sparse_as_dense)
        alone_optimizer = torch.optim.SparseAdam(alone.parameters(), lr=0.1)
        for _, y in batches(STEPS):
            words = torch.arange(8 * 4).reshape(8, 4) * int(y.sum()) % 50
            for net, opt, (a, b) in ((alone, alone_optimizer, (words, y)), (model, optimizer, own_share(words, y))):
                opt.zero_grad()
                functional.cross_entropy(net(a), b).backward()
                opt.step()
        check(model, optimizer, parameters(alone))
    return True


@pytest.mark.parametrize("policy", ALL)
def test_a_model_whose_gradients_are_all_sparse(start, policy):
    cluster = start(2, policy=policy)
    assert all(cluster.run(train_only_words, policy == "fifo"))
    assert all(cluster.run(train_with_sparse_adam))


# ---- names and state that some parameters do not have


def names_without_named_parameters():
    model = make()
    plain = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    assert list(plain._parameter_names) == list(model.parameters())
    assert len(set(plain._parameter_names.values())) == len(list(model.parameters()))
    model = make()
    named = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters())
    assert {name: param for param, name in named._parameter_names.items()} == dict(model.named_parameters())
    return True


def state_of_a_parameter_without_a_gradient(kind, frozen):
    """Only rank 0 has trained; one parameter has no gradient there, so it has no state."""
    model = make()
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2), requires_grad=not frozen)
    optimizer = kind([used, unused, *model.parameters()])
    if hvd.rank() == 0:
        (used * torch.arange(3.0)).sum().backward()
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    state = optimizer.state_dict()["state"]
    assert list(state) == [0], "state of parameters that were never updated"
    found = hvd.allgather_object({name: torch.as_tensor(value).tolist() for name, value in state[0].items()})
    assert found[0] == found[1] and found[0]
    optimizer.zero_grad()
    optimizer = hvd.DistributedOptimizer(optimizer)
    (used.sum() + sum(p.sum() for p in model.parameters())).backward()
    optimizer.step()
    optimizer.flush()
    last = hvd.allgather_object([p.tolist() for p in model.parameters()])
    assert last[0] == last[1], "equal from here on"
    return True


@pytest.mark.parametrize("policy", ALL)
def test_names_and_state_that_some_parameters_do_not_have(start, policy):
    cluster = start(2, policy=policy)
    assert all(cluster.run(names_without_named_parameters))
    for kind in (Momentum, torch.optim.Adam):
        for frozen in (False, True):
            assert all(cluster.run(state_of_a_parameter_without_a_gradient, kind, frozen))


class Momentum(torch.optim.SGD):
    def __init__(self, params):
        super().__init__(params, lr=0.5, momentum=0.9)
