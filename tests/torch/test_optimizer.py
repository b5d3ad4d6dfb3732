"""What training scripts do around an optimizer, each compared with one process on the whole batch."""

import copy
import pickle

import deft
import deft.torch as hvd
import pytest
import torch
from launching import WorkerFailed
from small_models import (
    CLASSES,
    FEATURES,
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
    wrapped,
)
from torch import nn
from torch.nn import functional

STEPS = 6
POLICIES = ["fifo", "bytescheduler"]
ALL = [*POLICIES, "knapsack 0@1"]  # the ways of delayed updates, without a delay


# ---- accumulation, zeroing


def accumulate(set_to_none):
    passes = 3
    expected_model = make()
    expected_optimizer = OPTIMIZERS["sgd"](expected_model.parameters())
    model = make()
    optimizer = wrapped(model, backward_passes_per_step=passes)
    for step in range(STEPS):
        expected_optimizer.zero_grad()
        optimizer.zero_grad(set_to_none=set_to_none)
        for x, y in batches(passes, seed=step):
            (loss_of(expected_model, x, y) / passes).backward()
            (loss_of(model, *own_share(x, y)) / passes).backward()
        expected_optimizer.step()
        optimizer.step()
    return check(model, optimizer, parameters(expected_model))


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_accumulates_over_backward_passes(start, policy, set_to_none):
    assert all(start(2, policy=policy).run(accumulate, set_to_none))


def zeroed_by(how):
    model = make()
    optimizer = wrapped(model)
    for x, y in batches(STEPS):
        {
            "to zero": lambda: optimizer.zero_grad(set_to_none=False),
            "by the model": model.zero_grad,
            "twice": lambda: (optimizer.zero_grad(), optimizer.zero_grad()),
            "after": lambda: None,
        }[how]()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()
        if how == "after":
            optimizer.zero_grad(set_to_none=False)
    return check(model, optimizer, train_alone("sgd", STEPS, schedule=False))


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("how", ["to zero", "by the model", "twice", "after"])
def test_gradients_can_be_zeroed_in_any_way(start, policy, how):
    assert all(start(2, policy=policy).run(zeroed_by, how))


def drop_a_backward():
    """A backward whose gradients are dropped takes part all the same, and changes nothing."""
    model = make()
    optimizer = wrapped(model)
    for x, y in batches(STEPS):
        loss_of(model, x * 3, y).backward()
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return check(model, optimizer, train_alone("sgd", STEPS, schedule=False))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_backward_can_be_dropped(start, policy):
    assert all(start(2, policy=policy).run(drop_a_backward))


def drop_without_the_optimizer(how, passes, compression, drops):
    """Steps that are skipped, as after a look for NaN or in the training of a GAN."""
    model = make()
    optimizer = wrapped(model, compression=compression, backward_passes_per_step=passes)
    for step in range(STEPS):
        if drops:
            for x, y in batches(passes, seed=100 + step):
                loss_of(model, x * 3, y).backward()
            how(model)
        for x, y in batches(passes, seed=step):
            (loss_of(model, *own_share(x, y)) / passes).backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.flush()
    assert_same_everywhere(parameters(model))
    assert overlaps(optimizer) == deft.policy_traits().overlaps_forward
    return digest(parameters(model))


def clear(model):
    model.zero_grad()


def write_zeros(model):
    model.zero_grad(set_to_none=False)


@pytest.mark.parametrize(("policy", "how"), [("fifo", clear), ("fifo", write_zeros), ("bytescheduler", clear)])
@pytest.mark.parametrize(
    ("passes", "compression"), [(1, hvd.Compression.none), (3, hvd.Compression.none), (1, hvd.Compression.fp16)]
)
def test_the_model_can_drop_a_backward(start, policy, how, passes, compression):
    run = start(2, policy=policy).run
    bits = {one for drops in (False, True) for one in run(drop_without_the_optimizer, how, passes, compression, drops)}
    assert len(bits) == 1


def zero_while_under_way():
    drop_without_the_optimizer(write_zeros, 1, hvd.Compression.none, True)


def test_zeros_that_are_written_to_gradients_under_way_are_an_error(start):
    with pytest.raises(WorkerFailed) as failed:
        start(2, policy="bytescheduler").run(zero_while_under_way)
    assert any("or call optimizer.zero_grad()" in str(text) for text in failed.value.errors), failed.value.errors


def drop_a_part(op):
    """What the first backward has averaged stays, but for the layer whose gradients are cleared."""
    model, alone = make(), make()
    optimizer = wrapped(model, op=op)
    alone_optimizer = OPTIMIZERS["sgd"](alone.parameters())
    for x, y in batches(STEPS):
        for net, opt, (a, b) in ((alone, alone_optimizer, (x, y)), (model, optimizer, own_share(x, y))):
            ranks = hvd.size() if net is alone and op is hvd.Sum else 1
            opt.zero_grad()
            (loss_of(net, a, b) * ranks).backward()
            net.last.zero_grad()
            (functional.cross_entropy(net.last(a[:, :1].expand(-1, 31)), b) * ranks).backward()
            opt.step()
    assert overlaps(optimizer) == deft.policy_traits().overlaps_forward
    return check(model, optimizer, parameters(alone))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_a_layer_can_drop_a_backward(start, policy, op):
    assert all(start(2, policy=policy).run(drop_a_part, op))


def too_many_passes(first):
    model = make()
    optimizer = wrapped(model)
    for count, (x, y) in enumerate(batches(4)):
        loss_of(model, x, y).backward()
        if count >= first:
            loss_of(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", [0, 2])
def test_more_passes_than_declared_are_an_error(start, policy, first):
    with pytest.raises(WorkerFailed) as failed:
        start(1, policy=policy).run(too_many_passes, first)
    assert any("more than backward_passes_per_step times" in text for text in failed.value.errors)


# ---- clipping and scaling


def clip(model, _optimizer=None):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)


def train_clipped(idiom):
    model = make()
    optimizer = wrapped(model)
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        if idiom == "horovod":
            optimizer.synchronize()
            clip(model)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            clip(model)
            optimizer.step()
    assert idiom == "horovod" or not overlaps(optimizer)
    return check(model, optimizer, train_alone("sgd", STEPS, schedule=False, after_backward=clip))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("idiom", ["horovod", "plain"])
def test_clips_the_averaged_gradients(start, policy, idiom):
    assert all(start(2, policy=policy).run(train_clipped, idiom))


def train_scaled(idiom):
    """On one rank alone a gradient becomes infinite once: all skip that step and lower the scale."""
    model = make()
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    expected_model = make()
    expected_optimizer = OPTIMIZERS["sgd"](expected_model.parameters())
    skipped = 0
    for count, (x, y) in enumerate(batches(STEPS)):
        optimizer.zero_grad()
        loss = loss_of(model, *own_share(x, y))
        broken = count == 3
        scaler.scale(loss * (float("inf") if broken and hvd.rank() == 1 else 1.0)).backward()
        before = scaler.get_scale()
        if idiom == "horovod":
            optimizer.synchronize()
            scaler.unscale_(optimizer)
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        if not broken:
            expected_optimizer.zero_grad()
            loss_of(expected_model, x, y).backward()
            expected_optimizer.step()
    assert skipped == 1
    assert len(set(hvd.allgather_object(scaler.get_scale()))) == 1
    return check(model, optimizer, parameters(expected_model))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("idiom", ["horovod", "plain"])
def test_a_gradient_scaler_agrees_on_all_ranks(start, policy, idiom):
    assert all(start(2, policy=policy).run(train_scaled, idiom))


def train_autocast():
    model = make()
    optimizer = wrapped(model, "adamw")
    alone = make()
    alone_optimizer = OPTIMIZERS["adamw"](alone.parameters())
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, x, y)  # the same batch on all ranks: the averages are one rank's gradients
        loss.backward()
        optimizer.step()
        alone_optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(alone, x, y)
        loss.backward()
        alone_optimizer.step()
    optimizer.flush()
    assert_same_everywhere(parameters(model))
    for name, value in parameters(alone).items():
        assert torch.equal(value, parameters(model)[name]), name
    return overlaps(optimizer) == (deft.option("policy") != "fifo")


@pytest.mark.parametrize("policy", ALL)
def test_autocast_gives_the_bits_of_the_plain_loop(start, policy):
    assert all(start(2, policy=policy).run(train_autocast))


# ---- optimizers that ask for the loss


def train_lbfgs():
    def build():
        torch.manual_seed(2)
        return nn.Linear(FEATURES, CLASSES).double()

    model, alone = build(), build()
    optimizer = hvd.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), max_iter=4), model.named_parameters())
    alone_optimizer = torch.optim.LBFGS(alone.parameters(), max_iter=4)
    for x, y in batches(3, torch.float64):
        for net, opt, (a, b) in ((alone, alone_optimizer, (x, y)), (model, optimizer, own_share(x, y))):

            def closure(net=net, opt=opt, a=a, b=b):
                opt.zero_grad()
                loss = functional.cross_entropy(net(a), b)
                loss.backward()
                return loss

            opt.step(closure)
    return check(model, optimizer, parameters(alone))


def test_an_optimizer_with_a_closure_sees_the_average_loss(start):
    assert all(start(2, policy="bytescheduler").run(train_lbfgs))


# ---- checkpoints and copies


def checkpoint_and_resume():
    def steps_of(model, optimizer, scheduler, data):
        for x, y in data:
            optimizer.zero_grad()
            loss_of(model, *own_share(x, y)).backward()
            optimizer.step()
            scheduler.step()

    def build():
        model = make()
        optimizer = wrapped(model, "adamw")
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    whole = build()
    steps_of(*whole, batches(8))
    data = list(batches(8))
    first = build()
    steps_of(*first, data[:5])
    saved = pickle.dumps([part.state_dict() for part in first]) if hvd.rank() == 0 else None  # while updates wait
    second = build()
    if hvd.rank() == 0:
        for part, state in zip(second, pickle.loads(saved)):
            part.load_state_dict(state)
    hvd.broadcast_parameters(second[0].state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(second[1], root_rank=0)
    second[2].load_state_dict(hvd.broadcast_object(second[2].state_dict()))
    assert second[1].param_groups[0]["lr"] == first[1].param_groups[0]["lr"]
    steps_of(*second, data[5:])
    assert_same_everywhere(parameters(second[0]))
    resumed = parameters(second[0])
    for name, value in parameters(whole[0]).items():
        assert torch.equal(value, resumed[name]), f"{name} differs after the checkpoint"
    return True


@pytest.mark.parametrize("policy", ALL)
def test_resumes_from_a_checkpoint_with_the_same_bits(start, policy):
    assert all(start(2, policy=policy).run(checkpoint_and_resume))


def copies():
    model = make()
    optimizer = wrapped(model)
    for x, y in batches(4):
        optimizer.zero_grad()
        loss_of(model, *own_share(x, y)).backward()
        optimizer.step()
    optimizer.flush()
    twin = pickle.loads(pickle.dumps(model))
    twin_optimizer = pickle.loads(pickle.dumps(optimizer))
    assert type(twin_optimizer) is torch.optim.SGD and len(twin_optimizer.state) == len(optimizer.state)
    clone = copy.deepcopy(model)
    for x, y in batches(2):
        for other in (twin, clone):
            loss_of(other, x, y).backward()
            with torch.no_grad():
                assert torch.equal(other(x), model(x))
    expected = hvd.allgather(torch.cat([p.flatten() for p in model.parameters()]).unsqueeze(0))
    assert torch.equal(expected[0], expected[1])
    return True


@pytest.mark.parametrize("policy", ALL)
def test_models_and_optimizers_can_be_copied(start, policy):
    assert all(start(2, policy=policy).run(copies))


def copies_of_other_kinds():
    """Of op=Adasum, and of a rank outside its process set, too: the copy makes the steps of a plain optimizer."""
    first = hvd.add_process_set([0])
    for options in ({"op": hvd.Adasum}, {"process_set": first}):
        model = make()
        optimizer = wrapped(model, **options)
        data = list(batches(2))
        step_on(model, optimizer, *data[0])
        pickled = pickle.loads(pickle.dumps((model, optimizer)))
        for twin, twin_optimizer in (pickled, copy.deepcopy((model, optimizer))):
            assert type(twin_optimizer) is torch.optim.SGD and len(twin_optimizer.state) == len(optimizer.state)
            alone = make()
            alone.load_state_dict(model.state_dict())
            alone_optimizer = OPTIMIZERS["sgd"](alone.parameters())
            alone_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            step_on(twin, twin_optimizer, *data[1])
            step_on(alone, alone_optimizer, *data[1])
            for name, value in parameters(alone).items():
                assert torch.equal(value, parameters(twin)[name]), name
    return True


def step_on(model, optimizer, x, y):
    optimizer.zero_grad()
    loss_of(model, x, y).backward()
    optimizer.step()


def test_every_kind_of_optimizer_can_be_copied(start):
    assert all(start(2, policy="fifo").run(copies_of_other_kinds))


# ---- what cannot work


def bad_arguments():
    model = make()
    sgd = lambda: torch.optim.SGD(model.parameters(), lr=0.1)  # noqa: E731
    named = list(model.named_parameters())
    for message, arguments in {
        "sequence of tuples": {"named_parameters": list(model.parameters())},
        "more than once: gain": {"named_parameters": [*named, ("gain", named[0][1])]},
        "not in it": {"named_parameters": named[2:]},
        "op is Max": {"op": hvd.Max},
        "op is Min": {"op": hvd.Min},
        "Average only": {"op": hvd.Sum, "gradient_predivide_factor": 2.0},
        "backward_passes_per_step is 0": {"backward_passes_per_step": 0},
        "overlap_forward is 'maybe'": {"overlap_forward": "maybe"},
    }.items():
        with pytest.raises(ValueError, match=message):
            hvd.DistributedOptimizer(sgd(), **arguments)
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd()))
    return True


def test_bad_arguments_are_named(start):
    assert all(start(1).run(bad_arguments))


def differing_parameters():
    model = nn.Sequential(nn.Linear(4, 4 + hvd.rank()), nn.Linear(4 + hvd.rank(), 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def test_parameters_that_differ_between_ranks_are_named_on_all(start):
    with pytest.raises(WorkerFailed) as failed:
        start(2).run(differing_parameters)
    assert all(
        (text and "0.weight" in text) or "0.bias" in text or "1.weight" in text for text in failed.value.errors
    ), failed.value.errors


def sum_instead_of_average():
    model = make()
    optimizer = wrapped(model, op=hvd.Sum, overlap_forward="off")
    for x, y in batches(2):
        optimizer.zero_grad()
        loss = loss_of(model, *own_share(x, y)) / hvd.size()
        loss.backward()
        optimizer.step()
    return check(model, optimizer, train_alone("sgd", 2, schedule=False))


def test_sums(start):
    assert all(start(2).run(sum_instead_of_average))
