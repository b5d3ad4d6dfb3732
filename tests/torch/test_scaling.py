"""deft.torch.GradScaler, with delayed updates and without: all ranks skip the same updates and keep the same scale."""

import deft.torch as hvd
import pytest
import torch
from delayed_reference import Run, backward, data_of, delayed, share_of
from launching import WorkerFailed
from small_models import DOUBLE, OPTIMIZERS, assert_close, assert_same_everywhere, digest, loss_of, make, own_share
from torch.utils.checkpoint import checkpoint

PLANS = ["0@2", "0-1@4", "0-2@5"]


def train_scaled(run, scaler, steps, broken=(), clip=None, factor=1e30):
    """Gives the scale of each step. In the steps `broken` rank 1's gradients overflow."""
    scales = []
    for _ in range(steps):
        run.optimizer.zero_grad()
        x, y = own_share(*data_of(run.steps, 1, run.dtype)[0])
        loss = loss_of(run.model, x, y)
        if run.steps in broken and hvd.rank() == 1:
            loss = loss * factor * factor
        scales.append(scaler.get_scale())
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(run.optimizer)
            clip(run.model)
        scaler.step(run.optimizer)
        scaler.update()
        run.steps += 1
    return scales


def scale_without_overflow(steps):
    """Scales are powers of two and grow between merged steps: the result has the bits of the run without a scaler."""
    plain, scaled = Run("adamw"), Run("adamw")
    plain.step(steps)
    scaler = hvd.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    scales = train_scaled(scaled, scaler, steps)
    calendar = scaled.calendar()
    assert calendar == plain.calendar()
    assert digest(scaled.state()) == digest(plain.state())
    assert_same_everywhere(scaled.state())
    applied = [sum(g.apply_step <= step for g in set(calendar)) for step in range(steps)]
    assert scales == [256.0 * 2 ** (count // 2) for count in applied]
    return True


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_merged_steps_of_different_scales_have_the_same_weight(start, plan, overlap):
    assert all(delayed(start, 2, scale_without_overflow, 14, plan=plan, overlap_forward=overlap))


def set_gradients_by_hand(scale):
    run = Run("adamw")
    scaler = hvd.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    train_scaled(run, scaler, 3)
    run.optimizer.zero_grad()
    for param in run.model.parameters():
        param.grad = torch.full_like(param, 0.125)
    run.optimizer.step()
    run.steps += 1
    return digest(run.state())


@pytest.mark.parametrize("plan", ["0@1", "0-1@3"])
def test_a_gradient_without_a_backward_has_no_scale(start, plan):
    plain, scaled = (delayed(start, 2, set_gradients_by_hand, scale, plan=plan) for scale in (1.0, 1024.0))
    assert len({*plain, *scaled}) == 1


def skip_overflows(broken, steps):
    run = Run("sgd", dtype=torch.float32)
    scaler = hvd.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    updates = []
    scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda count: updates.append(count) or 1.0)
    for _ in range(steps):
        train_scaled(run, scaler, 1, broken)
        scheduler.step()
    calendar = run.calendar()
    infinite = {calendar[step].number for step in broken}
    state = run.state(flush=False)
    assert_same_everywhere(state)
    assert all(bool(torch.isfinite(value).all()) for value in state.values())
    applied = {g.number for g in calendar if g.apply_step <= steps} - infinite
    assert updates[-1] == len(applied)
    if hvd.rank() == 0:
        assert_close(state, without(calendar, infinite, steps), rtol=1e-4, atol=1e-5)
    return scaler.get_scale(), digest(state)


def without(calendar, infinite, steps):
    """One process that leaves out the generations that had infinities."""
    model = make(dtype=torch.float32)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    params = list(model.parameters())
    sums = {}
    for step in range(steps + 1):
        for number in [n for n, (now, _) in sums.items() if now.apply_step <= step]:
            now, total = sums.pop(number)
            for param, value in zip(params, total):
                param.grad = value / now.merged
            if number not in infinite:
                optimizer.step()
        if step == steps:
            break
        optimizer.zero_grad()
        for rank in range(hvd.size()):
            shares = [share_of(rank, hvd.size(), x, y) for x, y in data_of(step, 1, torch.float32)]
            backward(model, shares, hvd.size())
        _, total = sums.setdefault(calendar[step].number, (calendar[step], [torch.zeros_like(p) for p in params]))
        for value, param in zip(total, params):
            value += param.grad
    return model.state_dict()


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("overlap", ["off", "on"])
def test_an_overflow_on_one_rank_is_skipped_on_all(start, plan, overlap):
    results = delayed(start, 2, skip_overflows, (4,), 12, plan=plan, overlap_forward=overlap)
    assert len(set(results)) == 1
    assert results[0][0] == 512.0


def test_overflows_of_steps_under_way_lower_the_scale_once(start):
    for scale, _ in delayed(start, 2, skip_overflows, (3, 4, 5), 14, plan="0@4"):  # all made before the first is seen
        assert scale == 512.0


def test_the_first_step_may_overflow(start):
    for scale, _ in delayed(start, 2, skip_overflows, (0,), 6, plan="0@3"):
        assert scale == 512.0


def clip_scaled():
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)

    run = Run()
    scaler = hvd.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    train_scaled(run, scaler, 13, clip=clip)
    state = run.state(flush=False)
    assert_same_everywhere(state)
    if hvd.rank() == 0:
        assert_close(state, run.expected(clip), **DOUBLE)
    return True


def test_averages_are_clipped_after_unscale(start):
    assert all(delayed(start, 2, clip_scaled, plan="0-1@4"))


def flush_scaled():
    """A flush applies what is pending, without what is infinite."""
    run = Run(dtype=torch.float32)
    scaler = hvd.GradScaler("cpu", init_scale=64.0)
    train_scaled(run, scaler, 6, broken=(5,))
    state = run.state()
    assert_same_everywhere(state)
    assert all(bool(torch.isfinite(value).all()) for value in state.values())
    before = scaler.get_scale()
    train_scaled(run, scaler, 1)
    return before, scaler.get_scale()


def test_a_flush_skips_infinities_too(start):
    assert set(delayed(start, 2, flush_scaled, plan="0-2@6")) == {(64.0, 32.0)}


def overflow_while_another_rank_has_no_batch():
    run = Run(dtype=torch.float32)
    scaler = hvd.GradScaler("cpu", init_scale=64.0)
    train_scaled(run, scaler, 4)
    run.optimizer.flush()  # what follows is a generation that only rank 0 has a gradient for
    if hvd.rank() == 0:
        scaler.scale(loss_of(run.model, *data_of(4, 1, run.dtype)[0]) * 1e30 * 1e30).backward()
    scaler.step(run.optimizer)
    scaler.update()
    run.steps += 1
    train_scaled(run, scaler, 4)
    state = run.state()
    assert_same_everywhere(state)
    assert all(bool(torch.isfinite(value).all()) for value in state.values())
    return scaler.get_scale()


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_a_rank_without_a_batch_skips_what_the_others_skip(start, overlap):
    job = (start, 2, overflow_while_another_rank_has_no_batch)
    assert set(delayed(*job, plan="0@3", overlap_forward=overlap)) == {32.0}


def two_optimizers():
    """One takes its gradients from a scaled loss, the other from a plain one, between the same updates."""
    scaled, plain = Run("adamw"), Run("adamw")
    alone = Run("adamw")
    scaler = hvd.GradScaler("cpu", init_scale=2.0**20)
    for _ in range(8):
        train_scaled(scaled, scaler, 1)
        plain.step()
    alone.step(8)
    assert digest(scaled.state()) == digest(plain.state()) == digest(alone.state())
    return True


def test_a_scaler_leaves_other_optimizers_alone(start):
    assert all(delayed(start, 1, two_optimizers, plan="0-1@3"))


def as_torchs(idiom):
    """With synchronous updates it is torch's."""
    states = []
    for kind in (torch.amp.GradScaler, hvd.GradScaler):
        run = Run("sgd", dtype=torch.float32)
        scaler = kind("cpu", init_scale=1024.0, growth_interval=2)
        train_scaled(run, scaler, 8, broken=(3,), clip=(lambda _model: None) if idiom == "unscale" else None)
        states.append((digest(run.state()), scaler.get_scale(), scaler.state_dict()))
        assert_same_everywhere(run.state())
    assert states[0] == states[1]
    return states[0][1]


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
@pytest.mark.parametrize("idiom", ["step", "unscale"])
def test_with_synchronous_updates_it_is_torchs(start, policy, idiom):
    assert len(set(start(2, policy=policy).run(as_torchs, idiom))) == 1


def scale_encoded(loss_scale, steps):
    """The scale doubles every other step; 1 is no scale."""
    run = Run(dtype=torch.float32)
    scaler = hvd.GradScaler("cpu", init_scale=loss_scale, growth_interval=2, enabled=loss_scale > 1)
    train_scaled(run, scaler, steps)
    return digest(run.state()), scaler.get_scale()


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_what_encodings_leave_out_has_no_scale(start, policy):
    """int4 sends its rest in later steps, when the scale is another one; yet the result has the bits of no scale."""
    cluster = start(2, policy=policy, compression="int4")
    plain, scaled = (cluster.run(scale_encoded, scale, 8) for scale in (1.0, 256.0))
    assert {scale for _, scale in scaled} == {256.0 * 2**4}
    assert len({bits for bits, _ in plain + scaled}) == 1


def average_small_gradients(steps):
    """Without the scale the largest of them has one digit as float16, and most are zero."""
    small = torch.linspace(1e-9, 1e-7, 64)
    parameter = torch.nn.Parameter(torch.zeros(64))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer = hvd.DistributedOptimizer(optimizer, [("weight", parameter)], compression=hvd.Compression.fp16)
    scaler = hvd.GradScaler("cpu", init_scale=2.0**18, growth_interval=1)
    for _ in range(steps):
        optimizer.zero_grad()
        scaler.scale((parameter * small * (1 + hvd.rank())).sum()).backward()
        scaler.unscale_(optimizer)
        assert_close({"weight": parameter.grad}, {"weight": 1.5 * small}, rtol=2e-3, atol=0)
        scaler.step(optimizer)
        scaler.update()
    return scaler.get_scale()


@pytest.mark.parametrize("policy", ["fifo", "bytescheduler"])
def test_float16_on_the_wire_keeps_small_gradients(start, policy):
    assert start(2, policy=policy).run(average_small_gradients, 3) == [2.0**21] * 2


def test_float16_on_the_wire_and_a_scale_are_refused_where_updates_are_delayed(start):
    with pytest.raises(WorkerFailed, match="gradient of weight travels as float16"):
        delayed(start, 1, average_small_gradients, 3, plan="0@1")


class Failing(torch.nn.Linear):
    """Its backward ends by an error before any gradient exists."""

    def forward(self, x):
        output = super().forward(x)
        output.register_hook(lambda _gradient: 1 / 0)
        return output


def fail_in_a_scaled_backward():
    """The next losses are not scaled, and have nested backwards, too."""
    x = torch.ones(3, 2)
    for nested in (False, True):
        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
        for step in range(3):
            if step != 1:
                with pytest.raises(ZeroDivisionError):
                    hvd.GradScaler("cpu").scale(Failing(2, 1)(x).sum()).backward()
            with torch.no_grad():
                model.weight.zero_()
            optimizer.zero_grad()
            given = x.clone().requires_grad_()
            output = checkpoint(model, given, use_reentrant=True) if nested else model(given)
            output.mean().backward()
            optimizer.step()
            optimizer.flush()
            assert model.weight.tolist() == [[-1.0, -1.0]], (nested, step)
    return True


@pytest.mark.parametrize("policy", ["fifo", "knapsack 0@1"])
def test_the_scale_of_a_backward_that_failed_is_forgotten(start, policy):
    assert all(start(2, policy=policy).run(fail_in_a_scaled_backward))


def save_the_scaler():
    run = Run()
    scaler = hvd.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    train_scaled(run, scaler, 5)
    other = hvd.GradScaler("cpu")
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == scaler.get_scale() > 64.0
    off = hvd.GradScaler("cpu", enabled=False)
    train_scaled(run, off, 3)
    return digest(run.state())


def test_scalers_can_be_saved_and_switched_off(start):
    assert len(set(delayed(start, 2, save_the_scaler, plan="0-1@3"))) == 1


def use_torchs(call):
    run = Run()
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(run.model, *data_of(0, 1, run.dtype)[0])).backward()
    getattr(scaler, call)(run.optimizer)


def call_twice(first, second):
    run = Run()
    scaler = hvd.GradScaler("cpu")
    scaler.scale(loss_of(run.model, *data_of(0, 1, run.dtype)[0])).backward()
    getattr(scaler, first)(run.optimizer)
    getattr(scaler, second)(run.optimizer)


@pytest.mark.parametrize("call", ["step", "unscale_"])
def test_torchs_scaler_is_refused_where_updates_are_delayed(start, call):
    with pytest.raises(WorkerFailed, match="use deft\\.torch\\.GradScaler"):
        delayed(start, 1, use_torchs, call, workers=1)


@pytest.mark.parametrize("calls", [("step", "step"), ("unscale_", "unscale_"), ("step", "unscale_")])
def test_calls_out_of_turn_are_named(start, calls):
    with pytest.raises(WorkerFailed, match=rf"{calls[1]}\(\) was called after {calls[0]}\(\)"):
        delayed(start, 1, call_twice, *calls, workers=1)
