"""Kinds of models and loops: compiled, checkpointed, used outside of their modules, with forked data loaders."""

import gc
import os
import weakref

import deft
import deft.torch as hvd
import pytest
import torch
from launching import WorkerFailed
from small_models import (
    CLASSES,
    FEATURES,
    OPTIMIZERS,
    Mixed,
    assert_close,
    assert_same_everywhere,
    batches,
    digest,
    loss_of,
    make,
    own_share,
    parameters,
    train_alone,
    wrapped,
)
from torch import nn
from torch.nn import functional
from torch.overrides import _get_current_function_mode_stack
from torch.utils.checkpoint import checkpoint

STEPS = 6
POLICIES = ["fifo", "bytescheduler"]
ALL = [*POLICIES, "knapsack 0@1"]  # the ways of delayed updates, without a delay


def train(model, forward=None, optimizer_name="sgd", flush=True, **options):
    optimizer = hvd.DistributedOptimizer(
        OPTIMIZERS[optimizer_name](model.parameters()), named_parameters=model.named_parameters(), **options
    )
    forward = model if forward is None else forward
    for x, y in batches(STEPS):
        optimizer.zero_grad()
        a, b = own_share(x, y)
        functional.cross_entropy(forward(a), b).backward()
        optimizer.step()
    if flush:
        optimizer.flush()
    return optimizer


def overlaps(optimizer):
    return optimizer._deft.applier.overlap.deferred is not None


def finish(model, expected):
    state = parameters(model)
    assert_same_everywhere(state)
    assert_close(state, expected)
    return True


# ---- torch.compile


class Layers(nn.Sequential):
    def __init__(self, dtype=torch.float32):
        super().__init__(nn.Linear(FEATURES, 40), nn.Tanh(), nn.Linear(40, CLASSES))
        self.to(dtype)


def train_compiled():
    """Compiled as a whole, in place, and in a part. The backend does not matter to hooks; "eager" is quick."""
    expected = train_alone("sgd", STEPS, schedule=False, build=Layers)
    for how in ("whole", "in place", "a part"):
        model = make(Layers)
        forward = model
        if how == "whole":
            forward = torch.compile(model, backend="eager")
        elif how == "in place":
            model.compile(backend="eager")
        else:
            model[2].compile(backend="eager")
        optimizer = train(model, forward)
        assert overlaps(optimizer) == (deft.option("policy") != "fifo"), how
        finish(model, expected)
    return True


@pytest.mark.parametrize("policy", POLICIES)
def test_compiled_models(start, policy):
    assert all(start(2, policy=policy).run(train_compiled))


# ---- where parameters are used


class Checkpointed(Mixed):
    reentrant = True

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        h = torch.tanh(self.first(x)) + self.tied(x)
        h = h.unsqueeze(1)
        h = (h + self.attention(h, h, h)[0] * self.gain).squeeze(1)
        h = checkpoint(self.norm, h, use_reentrant=self.reentrant)
        part = checkpoint(lambda z: self.narrow(torch.tanh(self.wide(z))), h, use_reentrant=self.reentrant)
        return self.last(part + functional.linear(x, self.first.weight))


def train_checkpointed(reentrant):
    Checkpointed.reentrant = reentrant
    model = make(Checkpointed)
    model.unused = nn.Parameter(torch.zeros(3))  # the generation is completed by the outermost backward
    optimizer = train(model)
    assert overlaps(optimizer) == (deft.option("policy") != "fifo")
    alone = train_alone("sgd", STEPS, schedule=False)
    return finish(model, alone)


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(start, policy, reentrant):
    assert all(start(2, policy=policy).run(train_checkpointed, reentrant))


class FusedLinear(torch.autograd.Function):
    """As fused layers are made: what an extension computes is seen by no mode of torch."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        with torch._C.DisableTorchFunction():
            return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class Borrowing(nn.Module):
    """Uses its decoder's weight before the decoder runs, and a submodule's weight that never runs."""

    linear = staticmethod(functional.linear)

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.encoder = nn.Linear(FEATURES, 300)
        self.decoder = nn.Linear(300, 300)
        self.lent = nn.Linear(300, CLASSES)
        self.to(dtype)

    def forward(self, x):
        h = self.linear(torch.tanh(self.encoder(x)), self.decoder.weight)
        return functional.linear(self.decoder(h), self.lent.weight, self.lent.bias)


class BorrowingInAFunction(Borrowing):
    linear = staticmethod(FusedLinear.apply)


def train_borrowing(build):
    model = make(build)
    optimizer = train(model)
    uses = dict(optimizer._deft.applier.overlap.tracker.found)
    assert model.decoder.weight in set(uses[model]), "the first use was not noticed"
    assert overlaps(optimizer)
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction), "the watch goes on"
    return finish(model, train_alone("sgd", STEPS, schedule=False, build=build))


class Interrupted(Borrowing):
    """Ctrl-C ends its first forward."""

    def forward(self, x):
        if not hasattr(self, "begun"):
            self.begun = True
            raise KeyboardInterrupt
        return super().forward(x)


def train_after_an_interrupt():
    """The watch of the forward that was interrupted ends, and modes of the script stay; the next watch is as ever."""
    model = make(Interrupted)
    optimizer = wrapped(model)
    with pytest.raises(KeyboardInterrupt):
        model(torch.zeros(1, FEATURES))
    modes = []
    with torch.device("cpu"):
        for x, y in batches(STEPS):
            optimizer.zero_grad()
            loss_of(model, *own_share(x, y)).backward()
            optimizer.step()
            modes.append([type(mode).__name__ for mode in _get_current_function_mode_stack()])
    optimizer.flush()
    assert modes == [["DeviceContext"]] * STEPS, modes
    assert not _get_current_function_mode_stack()
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction), "the watch goes on"
    return finish(model, train_alone("sgd", STEPS, schedule=False, build=Borrowing))


@pytest.mark.parametrize("build", [Borrowing, BorrowingInAFunction])
def test_parameters_used_outside_of_their_module_are_updated_in_time(start, build):
    cluster = start(2, policy="bytescheduler")
    assert all(cluster.run(train_borrowing, build))
    assert build is BorrowingInAFunction or all(cluster.run(train_after_an_interrupt))


class Detours(nn.Module):
    """From the fifth step on, a parameter is used where it was not when training began."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.second = nn.Linear(FEATURES, CLASSES)
        self.detour = False

    def forward(self, x):
        if self.detour:
            x = x + self.second.bias.sum()  # before second's own forward; a bias is not kept for backward
            return functional.linear(self.first(x), self.second.weight)
        return self.second(self.first(x))


class EarlyDetours(nn.Module):
    """From the fifth step on, a module's parameters are used first and the module is not: their gradients come last."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.middle = nn.Linear(FEATURES, FEATURES)
        self.last = nn.Linear(FEATURES, CLASSES)
        self.detour = False

    def forward(self, x):
        if self.detour:
            return self.last(self.first(functional.linear(x, self.middle.weight, self.middle.bias)))
        return self.last(self.middle(self.first(x)))


def take_a_detour(build):
    model = make(build)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap_forward=True
    )
    for count, (x, y) in enumerate(batches(STEPS)):
        model.detour = count >= 4
        loss_of(model, x, y).backward()
        optimizer.step()


def detour_without_fusing(build):
    import deft.torch.deferred_updates as deferred_updates

    deferred_updates._BATCH_BYTES = 0
    take_a_detour(build)


@pytest.mark.parametrize(("build", "used"), [(Detours, "second.weight"), (EarlyDetours, "middle.bias")])
def test_a_use_that_came_before_the_update_is_an_error(start, build, used):
    with pytest.raises(WorkerFailed) as failed:
        start(1).run(detour_without_fusing, build)
    assert any(f"{used} was used in a forward outside" in text for text in failed.value.errors), failed.value.errors


def evaluate_between():
    """Evaluation, state_dict() and the optimizer's state see all updates."""
    model, alone = make(), make()
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
    alone_optimizer = OPTIMIZERS["sgd"](alone.parameters())
    for count, (x, y) in enumerate(batches(8)):
        for net, opt in ((alone, alone_optimizer), (model, optimizer)):
            opt.zero_grad()
            loss_of(net, x, y).backward()  # the same batch on all ranks: the same bits
            opt.step()
        look = {
            3: lambda net, opt, x=x: {"output": shortcut(net, x)},
            4: lambda net, opt: net.narrow.state_dict(),
            5: lambda net, opt: {str(i): opt.state[p]["momentum_buffer"] for i, p in enumerate(net.parameters())},
            6: lambda net, opt: opt.state_dict()["state"][0],
            7: lambda net, opt, x=x: {"output": evaluated(net, x)},
        }.get(count)
        if look is not None:
            expected, found = look(alone, alone_optimizer), look(model, optimizer)
            assert all(torch.equal(expected[key], found[key]) for key in expected), count
    return overlaps(optimizer)


def evaluated(net, x):
    net.eval()
    with torch.inference_mode():
        output = net(x).clone()
    net.train()
    return output


@torch.no_grad()
def shortcut(net, x):
    """Another way through the model: it enters only the first module."""
    return functional.linear(net.first(x), net.last.weight)


def test_evaluation_and_state_see_every_update(start):
    assert all(start(2, policy="bytescheduler").run(evaluate_between))


# ---- processes


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        assert hvd.is_initialized() and hvd.size() == 2
        try:
            hvd.allreduce(torch.ones(1))
        except RuntimeError as error:
            assert "forked" in str(error)
        else:
            raise AssertionError("a forked child communicated")
        return torch.full((FEATURES,), float(index)), index % CLASSES


def train_with_loader():
    model = make()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
    sampler = torch.utils.data.DistributedSampler(Numbers(), num_replicas=hvd.size(), rank=hvd.rank())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in torch.utils.data.DataLoader(
            Numbers(), batch_size=2, sampler=sampler, num_workers=2, multiprocessing_context="fork"
        ):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
    child = os.fork()
    if child == 0:
        hvd.shutdown()
        os._exit(0)
    os.waitpid(child, 0)
    assert_same_everywhere(parameters(model))
    return True


def test_forked_data_loaders_do_not_disturb_the_job(start):
    assert all(start(2, policy="bytescheduler").run(train_with_loader))


def train_with_a_second_optimizer():
    """Fine-tuning: the same model goes to a new optimizer, while the first still has updates to make."""
    model, alone = make(), make()
    first = None
    for phase in range(2):
        optimizer = hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters())
        alone_optimizer = OPTIMIZERS["sgd"](alone.parameters())
        for x, y in batches(STEPS, seed=phase):
            for net, opt, (a, b) in ((alone, alone_optimizer, (x, y)), (model, optimizer, own_share(x, y))):
                opt.zero_grad()
                loss_of(net, a, b).backward()
                opt.step()
        first = optimizer if first is None else first
    with pytest.raises(RuntimeError, match="was given to a newer DistributedOptimizer"):
        first.step()
    optimizer.flush()
    finish(model, parameters(alone))
    del first, optimizer, opt
    hvd.shutdown()
    loss_of(model, x, y).backward()
    return all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


@pytest.mark.parametrize("policy", ALL)
def test_a_model_can_go_to_a_new_optimizer(start, policy):
    assert all(start(2, policy=policy).run(train_with_a_second_optimizer))


def drop_models():
    """A search over models: each is freed with its optimizer, whose hooks do nothing more."""
    alive = []
    for seed in range(3):
        model = make(seed=seed)
        optimizer = train(model)
        alive += [weakref.ref(param) for param in model.parameters()]
        del optimizer
        assert not hooks_on(model)  # on all ranks at once: nothing waits for a garbage collection
        backward_on_one_rank(model)
        del model
    gc.collect()
    return not any(reference() is not None for reference in alive)


def backward_on_one_rank(model):
    if hvd.rank() == 0:
        loss_of(model, *next(batches(1))).backward()
        assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def hooks_on(model):
    hooks = [hook for param in model.parameters() for hook in (param._post_accumulate_grad_hooks or {}).values()]
    for module in model.modules():
        for kind in ("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks"):
            hooks += getattr(module, kind).values()
    return hooks


@pytest.mark.parametrize("policy", ALL)
def test_models_are_freed_with_their_optimizers(start, policy):
    assert all(start(2, policy=policy).run(drop_models))


def keep_gradients(optimizer_ends_first):
    """A p.grad is a part of the arena, which goes with the session."""
    model = make()
    optimizer = train(model)
    loss_of(model, *own_share(*next(batches(1)))).backward()
    optimizer.synchronize()
    kept = [param.grad for param in model.parameters()]
    parts = [grad.view(-1)[1:] for grad in kept]
    copies = [grad.clone() for grad in kept]
    if optimizer_ends_first:
        del optimizer
        gc.collect()
    hvd.shutdown()
    for grad, part, copy in zip(kept, parts, copies):
        assert torch.equal(grad, copy)
        grad.add_(1)
        assert torch.equal(part, copy.view(-1)[1:] + 1), "it shares the memory of its gradient no more"
    return True


@pytest.mark.parametrize(("policy", "optimizer_ends_first"), list(zip(ALL, (False, True, False))))
def test_gradients_that_a_script_keeps_outlive_the_session(start, policy, optimizer_ends_first):
    assert all(start(2, policy=policy).run(keep_gradients, optimizer_ends_first))


def drop_an_optimizer_whose_updates_wait():
    """As a function that trains a model and gives it back: the end of its optimizer is a flush()."""
    flushed, dropped, collected = make(), make(), make()
    train(flushed)
    optimizer = train(dropped, flush=False)
    assert overlaps(optimizer)
    before = as_they_are(dropped)
    del optimizer
    assert digest(before) != digest(as_they_are(dropped)) == digest(as_they_are(flushed))
    assert not hooks_on(dropped)
    if deft.policy_traits().delays_updates:
        return True  # ranks collect cycles at different times, so they cannot flush then
    cycle = [train(collected, flush=False)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert digest(as_they_are(collected)) == digest(as_they_are(flushed))
    backward_on_one_rank(collected)  # Python takes no hooks off then, but they do nothing
    return True


def as_they_are(model):
    """Without state_dict(), which makes updates that wait."""
    return {name: param.detach().clone() for name, param in model.named_parameters()}


@pytest.mark.parametrize("policy", ["bytescheduler", "knapsack 0-1@3"])
def test_updates_that_wait_are_made_when_the_optimizer_is_dropped(start, policy):
    assert all(start(2, policy=policy).run(drop_an_optimizer_whose_updates_wait))


def leave_and_come_back():
    model = make()
    optimizer = train(model)
    loss_of(model, *next(batches(1))).backward()  # p.grad lies in the arena now
    hvd.shutdown()
    hvd.shutdown()
    assert not hvd.is_initialized()
    assert optimizer.state_dict()["param_groups"], "a checkpoint may be made after the job"
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    with pytest.raises(ValueError, match="init"):
        hvd.rank()
    loss_of(model, *next(batches(1))).backward()  # the hooks are off
    del optimizer
    hvd.init(job="second-" + os.environ["DEFT_JOB"])
    again = make()
    train(again)
    return finish(again, train_alone("sgd", STEPS, schedule=False))


def test_a_process_can_leave_and_join_another_job(start):
    assert all(start(2, policy="bytescheduler").run(leave_and_come_back))
