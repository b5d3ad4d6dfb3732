"""Delayed and merged updates: what they give is compared with one process that follows the same generations."""

import copy
import logging
import re
import sys
import time

import deft.torch as hvd
import pytest
import torch
from delayed_reference import SCHEDULES, Run, delayed, follow
from launching import WorkerFailed
from small_models import DOUBLE, assert_close, assert_same_everywhere, digest, overlaps

# ---- the same bits on all ranks, with and without forward overlap, and what one process gets


def follow_a_plan(options, flushes, tolerance):
    run = Run(**options)
    for step in range(14):
        run.step()
        if step + 1 in flushes:
            run.optimizer.flush()
    state = run.state()
    assert_same_everywhere(state)
    calendars = run.calendars()
    if hvd.rank() == 0:
        assert_close(state, run.expected(), **tolerance)
    return digest(state), overlaps(run.optimizer), [sorted(dates.items()) for dates in calendars]


CASES = {
    "one step late": ("0@2", 2, 2, {}, (), DOUBLE),
    "three steps late": ("0@4", 4, 2, {"optimizer": "adamw"}, (5,), DOUBLE),
    "two merged": ("0-1@3", 2, 1, {"optimizer": "rmsprop"}, (4, 9), DOUBLE),
    "three merged, flushed in mid-cycle": ("0-2@5", 4, 2, {"optimizer": "adamw"}, (6, 7, 11), DOUBLE),
    "one bucket late": ("0@1;1:0-1@3", 2, 2, {}, (6,), DOUBLE),
    "each bucket its own": ("0@2;0:0@1;1,2:0-1@3;4:0-2@4", 4, 2, {"optimizer": "adamw"}, (5, 6, 13), DOUBLE),
    "one bucket fresh": ("0-1@4;2:0@1", 2, 1, {"optimizer": "rmsprop", "passes": 2}, (3,), DOUBLE),
    "uneven": ("0-1@4,2@5", 2, 2, {"passes": 2}, (3,), DOUBLE),
    "fp16": (
        "0-1@4",
        2,
        2,
        {"dtype": torch.float32, "compression": hvd.Compression.fp16},
        (8,),
        {"rtol": 0, "atol": 0.02},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_pinned_plan_gives_the_same_bits_in_every_run(start, case):
    plan, workers, nodes, options, flushes, tolerance = CASES[case]
    seen = []
    for overlap in ("off", "on"):
        results = delayed(
            start,
            nodes,
            follow_a_plan,
            options,
            flushes,
            tolerance,
            workers=workers,
            plan=plan,
            partition_bytes=4096,
            overlap_forward=overlap,
        )
        assert all(overlapped == (overlap == "on") for _, overlapped, _ in results)
        seen += [(bits, calendar) for bits, _, calendar in results]
    assert seen.count(seen[0]) == len(seen)
    _, calendars = seen[0]
    merged = {generation.merged for dates in calendars for _, generation in dates}
    assert max(merged) == (3 if "-2@" in plan else 2 if "-" in plan else 1)
    assert (";" in plan) == any(len({generation for _, generation in dates}) > 1 for dates in calendars)
    assert any(generation.apply_step > generation.last_step + 1 for dates in calendars for _, generation in dates)


MOST_STEPS = 250


def is_delayed(run):
    """Whether the newest step's gradients are applied later than before the next one: the same on all ranks."""
    return any(generation.apply_step > run.steps for generation in run.group.generations_of(run.steps - 1))


def follow_measured_plans():
    """It flushes before the first plan, and when one begins to delay updates; whether one does, the machine decides."""
    run = Run("adamw")
    run.step(4)
    run.optimizer.flush()
    run.step(20)  # the first plan begins meanwhile
    while run.steps < MOST_STEPS and not is_delayed(run):
        run.step()
    run.step()
    run.optimizer.flush()
    for _ in range(20):
        run.step()
        time.sleep(0.004)
    state = run.state()
    assert_same_everywhere(state)
    if hvd.rank() == 0:
        assert_close(state, run.expected(), rtol=1e-6, atol=1e-8)
    return digest(state)


# Parts are small, so that sending them takes about as long as compute. One bucket for all, which is late as a whole;
# and a bucket a tensor, of which only the largest may be.
@pytest.mark.parametrize("options", [{"max_stale_percent": 100, "bucketing": "ddp"}, {}])
def test_a_measured_plan_follows_in_the_middle_of_a_run(start, options):
    cluster = start(2, policy="knapsack", max_staleness_steps=16, partition_bytes=4096, **options)
    bits = cluster.run(follow_measured_plans)
    assert len(set(bits)) == 1
    log = (cluster.folder / "daemon0.log").read_text()
    assert f"[job{cluster.jobs}] plan 1 from step" in log, log


# ---- limits that leave nothing to delay


def keep_up(steps):
    run = Run(dtype=torch.float64)
    run.step(steps)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    run.optimizer.flush()
    if not overlaps(run.optimizer):
        assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters()))  # nothing was pending
    state = run.state()
    assert_same_everywhere(state)
    calendar = [generation[:4] for generation in run.calendar()]
    assert calendar == [(step, step, step, step + 1) for step in range(steps)]
    if hvd.rank() == 0:
        assert_close(state, follow(run.calendars(), "sgd", torch.float64, 1, None, lambda _model: None), **DOUBLE)
    return digest(state)


def keep_up_with_one_slot(steps):
    sys.modules["deft.torch.optimizer"].SLOTS = 1
    return keep_up(steps)


@pytest.mark.parametrize(
    ("train", "limit"),
    [(keep_up, {"max_staleness_steps": 0}), (keep_up_with_one_slot, {}), (keep_up, {"plan": "0@1"})],
)
def test_without_staleness_or_slots_every_step_is_updated_at_once(start, train, limit):
    bits = delayed(start, 2, train, 24, **limit) + start(2, policy="fifo").run(keep_up, 24)
    assert len(set(bits)) == 1


def test_a_run_may_end_before_there_is_a_plan(start):
    assert len(set(delayed(start, 2, keep_up, 5))) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"plan": "0-1@1"}, r"option plan: .*'0-1@1'"),
        ({"plan": "twice"}, "'twice' in 'twice' is no generation"),
        ({"plan": "0@6"}, "needs an arena of 6 slots, of 4.*delay less"),
        ({"plan": "0@2", "max_staleness_steps": 0}, "1 steps late, and the limit is 0"),
        ({"plan": "0-1@2", "max_staleness_steps": 0}, "merges steps, and every step is to be updated"),
        ({"plan": "0@2", "policy": "fifo"}, "the option plan is for the policy knapsack, not for fifo"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(start, options, message):
    with pytest.raises(WorkerFailed) as failed:
        delayed(start, 1, keep_up, 3, **options)
    assert all(re.search(message, text or "") for text in failed.value.errors), failed.value.errors


# ---- steps without an update


def steps_that_change_nothing():
    run = Run("adamw")
    run.step()
    changed = []
    for _ in range(12):
        weights = [parameter.detach().clone() for parameter in run.model.parameters()]
        counts = [float(state["step"]) for state in run.optimizer.state.values()]
        run.backward()
        run.optimizer.step()
        same = all(torch.equal(a, b) for a, b in zip(weights, run.model.parameters()))
        counted = [float(state["step"]) for state in run.optimizer.state.values()]
        assert same == (counted == counts)
        assert all(parameter.grad is None for parameter in run.model.parameters())
        changed.append(not same)
    return changed


def test_steps_without_an_update_touch_neither_weights_nor_state(start):
    for changed in delayed(start, 1, steps_that_change_nothing, plan="0-2@4", overlap_forward="off"):
        assert changed == [step in (4, 7, 10) for step in range(1, 13)]  # the steps 1 to 3 are applied before 5


# ---- clipping and looking at the averages


def clip_and_compare():
    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)

    run = Run()
    for step in range(13):
        run.backward()
        run.optimizer.synchronize()
        due = any(generation.apply_step == step + 1 for generation in run.calendar())
        assert all((parameter.grad is not None) == due for parameter in run.model.parameters())
        clip(run.model)
        with run.optimizer.skip_synchronize():
            run.optimizer.step()
    state = run.state(flush=False)
    assert_same_everywhere(state)
    if hvd.rank() == 0:
        assert_close(state, run.expected(clip), **DOUBLE)
    return digest(state)


def test_clipping_after_synchronize_clips_the_averages(start):
    results = delayed(start, 2, clip_and_compare, plan="0-1@4")
    assert len(set(results)) == 1


def clip_too_early():
    run = Run()
    for _ in range(6):
        run.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1e-3)
        run.optimizer.step()


def zero_in_between():
    run = Run()
    run.step(3)
    run.backward()
    run.optimizer.zero_grad()


def second_backward():
    run = Run()
    run.step(3)
    run.backward()
    run.model.gain.sum().backward()


def two_losses():
    run = Run()
    run.step(3)
    run.optimizer.flush()
    run.model.gain.sum().backward()
    run.model.last.bias.sum().backward()


def step_with_a_closure():
    run = Run()
    run.step(3)
    run.optimizer.step(lambda: torch.zeros(()))


def flush_in_mid_step():
    run = Run()
    run.step(3)
    run.backward()
    run.optimizer.flush()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (clip_too_early, "was changed between backward\\(\\) and step\\(\\).*optimizer.synchronize\\(\\)"),
        (zero_in_between, "zero_grad\\(\\) between backward\\(\\) and step\\(\\) would drop"),
        (second_backward, "more than backward_passes_per_step times.*gain"),
        (two_losses, "a second backward\\(\\) before step\\(\\)"),
        (step_with_a_closure, "step\\(closure\\)"),
        (flush_in_mid_step, "flush\\(\\) between backward\\(\\) and step\\(\\)"),
    ],
)
def test_what_delayed_updates_do_not_allow_is_an_error(start, function, message):
    with pytest.raises(WorkerFailed, match=message):
        delayed(start, 1, function, workers=1, plan="0@2")


# ---- flushes


def step_without_a_batch(skipped):
    run = Run("sgd")
    for step in range(12):
        if step in skipped and hvd.rank() == 1:
            run.optimizer.zero_grad()
            run.steps += 1
        else:
            run.backward()
        run.optimizer.step()
        if step == 5:
            run.optimizer.flush()
    state = run.state()
    assert_same_everywhere(state)
    return digest(state)


@pytest.mark.parametrize("skipped", [(6,), (0,), (4, 5, 9)], ids=["after a flush", "first", "some"])
def test_a_rank_without_a_batch_takes_part_with_zeros(start, skipped):
    bits = delayed(start, 2, step_without_a_batch, skipped, plan="0-2@4")
    assert len(set(bits)) == 1


def flush_alone():
    run = Run()
    run.step(4)
    if hvd.rank() == 0:
        run.optimizer.flush()
    run.step(6)


@pytest.mark.parametrize("plan", ["0@2", "0-2@5"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_flush_on_one_rank_alone_is_an_error_on_all(start, plan, nodes):
    with pytest.raises(WorkerFailed) as failed:
        delayed(start, nodes, flush_alone, plan=plan)
    assert all("flush on all ranks" in (text or "") for text in failed.value.errors), failed.value.errors


def save_and_resume(stop, steps):
    """A run, and the same in two parts with a checkpoint between them; both flush there."""
    whole = Run("adamw", schedule=SCHEDULES["step"])
    whole.step(stop)
    whole.optimizer.flush()
    saved = copy.deepcopy([part.state_dict() for part in (whole.model, whole.optimizer, whole.scheduler)])
    whole.step(steps)
    return saved, digest(whole.state())


def resume(saved, stop, steps):
    run = Run("adamw", schedule=SCHEDULES["step"])
    for part, state in zip((run.model, run.optimizer, run.scheduler), copy.deepcopy(saved)):
        part.load_state_dict(state)  # what a test passes to workers lies in memory that they share
    run.steps = stop
    run.step(steps)
    return digest(run.state())


def test_a_run_resumes_from_a_checkpoint_with_the_same_bits(start):
    options = {"max_staleness_steps": 0}
    (saved, bits), *_ = delayed(start, 2, save_and_resume, 5, 7, **options)
    assert set(delayed(start, 2, resume, saved, 5, 7, **options)) == {bits}


def test_a_checkpoint_in_mid_cycle_is_as_good_as_one_process_that_follows_the_calendars(start):
    assert all(delayed(start, 2, resume_in_mid_cycle, plan="0-2@5"))


def resume_in_mid_cycle():
    whole = Run("adamw")
    whole.step(6)  # the cycle of the steps 4 to 6 is under way
    whole.optimizer.flush()
    assert not whole.optimizer._deft.schedule.pending()
    saved = copy.deepcopy([part.state_dict() for part in (whole.model, whole.optimizer)])
    second = Run("adamw")
    for part, state in zip((second.model, second.optimizer), saved):
        part.load_state_dict(state)
    second.steps = 6
    for run in (whole, second):
        run.step(1)
        run.optimizer.flush()
    assert digest(whole.state()) == digest(second.state())
    assert_same_everywhere(second.state())
    return True


def save_while_pending():
    messages = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    logging.getLogger("deft.torch").addHandler(handler)
    run = Run()
    run.step(5)
    run.optimizer.state_dict()
    run.optimizer.flush()
    count = len(messages)
    run.optimizer.state_dict()
    assert len(messages) == count
    return [text for text in messages if "wait for their update" in text]


def test_a_checkpoint_with_pending_gradients_is_warned_of(start):
    for warned in delayed(start, 1, save_while_pending, plan="0@3"):
        assert len(warned) == 1


# ---- what is no number


def nan_on_one_rank():
    run = Run(dtype=torch.float32)
    run.step(4)
    run.optimizer.flush()
    parameter = run.model.last.bias
    hook = parameter.register_hook(lambda grad: grad * float("nan") if hvd.rank() == 1 else grad)
    run.step(1)
    hook.remove()
    run.step(6)
    state = run.state()
    assert_same_everywhere(state)
    return bool(torch.isnan(state["last.bias"]).all())


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_nan_on_one_rank_is_nan_on_all(start, overlap):
    assert all(delayed(start, 2, nan_on_one_rank, plan="0-1@4", overlap_forward=overlap))
