"""Optimizers of any kind: with step hooks, from outside of torch.optim, with groups; and what state_dict() sees."""

import json
import logging
import os
import subprocess

import deft
import deft.torch as hvd
import pytest
import torch
from delayed_reference import Run
from launching import BUILD
from small_models import (
    OPTIMIZERS,
    assert_same_everywhere,
    batches,
    check,
    digest,
    loss_of,
    make,
    overlaps,
    own_share,
    parameters,
    train_alone,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

STEPS = 6
LEVELS = {"int8": 0.01, "int4": 0.2}  # of normally distributed values: the error of an encoding over its gradient


def train(model, optimizer, steps=STEPS):
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()
    return optimizer


# ---- hooks on step()


def step_with_hooks(before, after):
    """A hook sees the averages before the update and the new weights after it, once a step."""
    model, alone = make(), make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    alone_optimizer = OPTIMIZERS["sgd"](alone.parameters())
    train(model, optimizer)
    train_whole(alone, alone_optimizer)
    assert overlaps(optimizer) == deft.policy_traits().overlaps_forward
    seen = {"mine": [], "alone": []}
    for name, net, opt in (("mine", model, optimizer), ("alone", alone, alone_optimizer)):
        notes = seen[name]
        if before:
            opt.register_step_pre_hook(lambda *_, net=net, notes=notes: notes.append(grads(net)))
        if after:
            opt.register_step_post_hook(lambda *_, net=net, notes=notes: notes.append(parameters(net)))
    train(model, optimizer, 3)
    train_whole(alone, alone_optimizer, 3)
    assert len(seen["mine"]) == len(seen["alone"]) == 3 * (before + after)
    for mine, whole in zip(seen["mine"], seen["alone"]):
        for key, value in whole.items():
            torch.testing.assert_close(mine[key], value, rtol=1e-4, atol=1e-5)
    return check(model, optimizer, parameters(alone))


def train_whole(model, optimizer, steps=STEPS):
    for x, y in batches(steps):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()


def grads(model):
    return {name: param.grad.detach().clone() for name, param in model.named_parameters()}


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("policy", ["fifo", "bytescheduler", "knapsack 0@1"])
def test_step_hooks_keep_the_barrier(start, policy, before, after):
    assert all(start(2, policy=policy).run(step_with_hooks, before, after))


def step_with_global_hooks():
    """torch's hooks on all optimizers run once a step, too, and see what hooks on one optimizer see."""
    model = make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    train(model, optimizer)
    assert overlaps(optimizer) == deft.policy_traits().overlaps_forward
    before, after = [], []
    hooks = [
        register_optimizer_step_pre_hook(lambda *_: before.append(grads(model))),
        register_optimizer_step_post_hook(lambda *_: after.append(parameters(model))),
    ]
    train(model, optimizer, 3)
    for hook in hooks:
        hook.remove()
    assert len(before) == len(after) == 3
    return check(model, optimizer, after[-1])


@pytest.mark.parametrize("policy", ["bytescheduler", "knapsack 0@1"])
def test_hooks_on_all_optimizers_keep_the_barrier(start, policy):
    assert all(start(2, policy=policy).run(step_with_global_hooks))


# ---- from outside of torch.optim


class Lion(torch.optim.Optimizer):
    """As scripts bring their own; each parameter is updated by itself."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
                param.sub_(group["lr"] * (0.9 * momentum + 0.1 * param.grad))
                momentum.mul_(0.99).add_(param.grad, alpha=0.01)


def own_optimizer(overlap):
    model, alone = make(), make()
    optimizer = hvd.DistributedOptimizer(
        Lion(model.parameters(), lr=0.1), model.named_parameters(), overlap_forward=overlap
    )
    assert isinstance(optimizer, Lion)
    train(model, optimizer)
    train_whole(alone, Lion(alone.parameters(), lr=0.1))
    assert overlaps(optimizer) == (overlap == "on")
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", ["bytescheduler", "knapsack 0@1"])
@pytest.mark.parametrize("overlap", ["auto", "on"])
def test_an_optimizer_of_ones_own_overlaps_only_if_that_is_said(start, policy, overlap):
    assert all(start(2, policy=policy).run(own_optimizer, overlap))


# ---- groups


def with_groups(options):
    model = make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(), **options)
    train(model, optimizer)
    return check(model, optimizer, train_alone("sgd", STEPS, schedule=False)) and digest(parameters(model))


def test_horovods_groups_change_nothing(start):
    cluster = start(2, policy="bytescheduler")
    bits = {with_ for options in ({}, {"num_groups": 2}) for with_ in cluster.run(with_groups, options)}
    assert len(bits) == 1


# ---- what state_dict() sees


def states(model, optimizer):
    """Digests of the parameters: as they lie there, in model.state_dict(), after optimizer.flush()."""
    before = digest({name: param.detach().clone() for name, param in model.named_parameters()})
    named = {name: value for name, value in model.state_dict().items() if name in dict(model.named_parameters())}
    saved = digest(named)
    optimizer.flush()
    return before, saved, digest({name: param.detach().clone() for name, param in model.named_parameters()})


def save_with_overlap():
    model = make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    train(model, optimizer)
    assert overlaps(optimizer)
    return states(model, optimizer)


def test_state_dict_has_the_updates_that_wait_for_the_next_forward(start):
    for before, saved, flushed in start(2, policy="bytescheduler").run(save_with_overlap):
        assert before != saved == flushed


def save_delayed(overlap):
    run = Run("sgd", overlap_forward=overlap)
    run.step(7)
    found = states(run.model, run.optimizer)
    assert_same_everywhere(run.state())
    return found


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_state_dict_does_not_have_delayed_updates_that_are_not_due(start, overlap):
    cluster = start(2, policy="knapsack", max_staleness_steps=16)
    for before, saved, flushed in cluster.run(save_delayed, overlap, plan="0@3"):
        assert saved != flushed  # the newest two steps wait
        assert (before == saved) == (overlap == "off")  # with overlap it holds the update that was due


# ---- how policies cut a gradient


def parts_of_a_step():
    """Parts that this rank's node sends for one tensor of 1,000,000 bytes, by `deft status`."""
    weight = torch.nn.Parameter(torch.zeros(250_000))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1), [("weight", weight)])

    def sent(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            (weight.sum() * 2).backward()
            optimizer.step()
        optimizer.flush()
        hvd.barrier()
        jobs = {job["name"]: job for job in json.loads(status("--json"))["jobs"]}
        return sum(link["parts"] for link in jobs[os.environ["DEFT_JOB"]]["links"])

    first = sent(2)
    return (sent(5) - first - 1) / 5  # the barrier was a part, too


def status(*options):
    return subprocess.run([BUILD / "bin/deft", "status", *options], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("policy", "parts"), [("p3", 7), ("fifo", 1)])  # p3: slices of 160,000 bytes
def test_p3_cuts_a_gradient_into_slices(start, policy, parts):
    found = start(2, policy=policy, partition_bytes="1MB", overlap_forward="off").run(parts_of_a_step)
    assert found == [parts, parts]


# ---- codecs of parameters


def with_own_codecs(steps):
    """One wide matrix travels in int4, one as the job says, one is exact; a function of name and tensor chooses."""

    def choose(name, param):
        assert isinstance(param, torch.nn.Parameter)
        return {"wide.weight": hvd.Compression.int4, "narrow.weight": hvd.Compression.exact}.get(
            name, hvd.Compression.none
        )

    model = make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(), choose)
    return distances_of(model, optimizer, steps)


def distances_of(model, optimizer, steps):
    """How far the sum of the averages is from that of exact ones, after each step; the last brings all residuals."""
    names = [name for name, _ in model.named_parameters()]
    exact, brought = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    distances = []
    for number, (x, y) in enumerate(batches(steps, next(model.parameters()).dtype)):
        if number == steps - 1 and steps > 1:
            optimizer.flush(residuals=True)
        optimizer.zero_grad()
        mine = torch.autograd.grad(loss_of(model, *own_share(x, y)), list(model.parameters()))
        for name, gradient in zip(names, mine):
            exact[name] = exact[name] + hvd.allreduce(gradient.float().contiguous(), name=f"exact.{name}")
        loss_of(model, *own_share(x, y)).backward()
        optimizer.synchronize()
        for name, param in model.named_parameters():
            brought[name] = brought[name] + param.grad.float()
        with optimizer.skip_synchronize():
            optimizer.step()
        distances.append({name: ((brought[name] - exact[name]).norm() / exact[name].norm()).item() for name in names})
    assert_same_everywhere(parameters(model))
    return distances


def test_parameters_can_have_codecs_of_their_own(start):
    for compression in ("none", "int8"):
        cluster = start(2, policy="bytescheduler", compression=compression, overlap_forward="off")
        for distance, _, last in cluster.run(with_own_codecs, 3):
            assert 1e-2 < distance["wide.weight"] < 0.3, "int4"
            assert distance["narrow.weight"] < 1e-6, "exact, whatever the job says"
            assert distance["first.weight"] < 1e-6, "too small for blocks"
            assert last["wide.weight"] < 1e-5, "flush(residuals=True) brings what was left out"


def warnings_of_checkpoints():
    """What the log says in a state_dict() to which nothing is missing, and in two to which residuals are."""
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("deft.torch").addHandler(handler)
    model = make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    counts = []
    for step, (x, y) in enumerate(batches(3)):
        if step == 1:
            optimizer.flush(residuals=True)
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()
        if step > 0:
            optimizer.state_dict()
            counts.append(len(said))
    optimizer.state_dict()
    return [*counts, len(said)], said


def test_a_checkpoint_without_residuals_is_warned_of_once(start):
    without = [(codec, [0, 0, 0]) for codec in ("none", "terngrad", "randk/ratio=0.1,unbiased=1")]
    for codec, expected in (("int8", [0, 1, 1]), *without):
        for counts, said in start(2, policy="bytescheduler", compression=codec).run(warnings_of_checkpoints):
            assert counts == expected, said
            assert all("encodings (int8)" in text and "flush(residuals=True)" in text for text in said)


def test_a_checkpoint_is_warned_of_where_the_policy_encodes_unasked(start):
    options = {"policy": "knapsack", "max_staleness_steps": 0}
    for counts, said in start(2, **options).run(warnings_of_checkpoints):
        assert counts == [0, 1, 1] and "encodings (auto/max=int8)" in said[0], said
    for nodes, variables in ((2, {"compression": "none"}), (1, {})):
        for counts, said in start(nodes, **options).run(warnings_of_checkpoints, **variables):
            assert counts == [0, 0, 0], said


def with_halves(dtype, steps):
    model = make(dtype=dtype)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    return distances_of(model, optimizer, steps)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_gradients_of_half_precision_are_encoded(start, codec):
    cluster = start(2, policy="bytescheduler", compression=codec, overlap_forward="off")
    for dtype, epsilon in ((torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        for first, *_, last in cluster.run(with_halves, dtype, 4):
            assert 0.2 * LEVELS[codec] < first["wide.weight"] < 3 * LEVELS[codec], dtype
            assert first["first.weight"] < epsilon, "too small for blocks, so the sum is rounded alone"
            assert last["wide.weight"] < 2 * epsilon, "flush(residuals=True) brings what was left out"


def train_one_batch(steps):
    """The losses over all ranks."""
    model = make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    x, y = next(batches(1))
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, *own_share(x, y))
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach()).item())
    assert_same_everywhere(parameters(model))
    return losses


def test_low_rank_gradients_train_and_replicas_stay_equal(start):
    exact = start(2, policy="bytescheduler", compression="none").run(train_one_batch, 30)
    for method in ("acp", "powersgd"):
        codec = f"lowrank/rank=2,method={method}"
        found = start(2, policy="bytescheduler", compression=codec).run(train_one_batch, 30)
        assert found[0] == found[1] and found[0] != exact[0], "nothing was encoded"
        assert found[0][-1] < found[0][0] / 2, method


class Halves:
    """A compressor of Horovod's kind that a script has made."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, None


def with_a_codec_for(what):
    model = make()
    if what == "a collective":
        hvd.allreduce(torch.ones(3), compression=hvd.Compression.int8)
    elif what == "a text":
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(), "int8")
    elif what == "a class":
        hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(), Halves)


WRONG_COMPRESSIONS = {
    "a collective": "codecs are for gradients",
    "a text": "Compression.int8",
    "a class": r"compression for .* is <class '.*Halves'>; choose Compression.none",
}


def test_codecs_where_they_do_not_belong_are_refused(start):
    for what, words in WRONG_COMPRESSIONS.items():
        with pytest.raises(Exception, match=words):
            start(2, policy="bytescheduler", compression="none", overlap_forward="off").run(with_a_codec_for, what)
