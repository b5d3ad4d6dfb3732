"""What the plugin tells of norms and losses, and that the leader's plans are judged by it."""

import json
import logging
import os
import subprocess

import deft
import deft.torch as hvd
import pytest
import torch
from delayed_reference import Run, backward, data_of
from launching import BUILD, WorkerFailed
from small_models import assert_same_everywhere, digest

OPTIONS = {"policy": "knapsack", "max_staleness_steps": 16}


def squares(tensors):
    return sum(float(tensor.double().square().sum()) for tensor in tensors)


def tell_norms(plan, options):
    """Samples, compared with norms that are computed here from the same gradients."""
    run = Run("sgd", **options)
    own, mean, told = [], [], []
    for step in range(24):
        run.backward()
        run.optimizer.report_loss(torch.tensor(3.0 + hvd.rank()), target=0.5)
        grads = {name: p.grad.clone() for name, p in run.model.named_parameters()}
        own.append(grads)
        mean.append({name: hvd.allreduce(grad, name=f"{name}.{step}") for name, grad in grads.items()})
        if step == 1:
            send = run.group.report
            run.group.report = lambda statistics, send=send: (told.append(statistics), send(statistics))
        run.optimizer.step()
        if step == 19:
            run.optimizer.flush()
    steps = [statistics.step for statistics in told]
    assert steps == sorted({1, 17} | (set(steps) & {*range(9), 9, 13, 21}))
    assert plan != "0@1" or steps == [*range(10), 13, 17, 21]
    calendars, ranks = run.calendars(), hvd.size()
    for statistics in told:
        average = 0.0
        for name, generation in calendars[statistics.step].items():
            steps = range(generation.first_step, generation.last_step + 1)
            merged = squares([sum(mean[step][name] for step in steps) / len(steps)])
            alone = squares([own[statistics.step][name]])
            k = len(steps)
            average += (merged * k * (ranks - 1) + alone * (k - 1)) / (k * ranks - 1)
        assert statistics.local_norm == pytest.approx(squares(own[statistics.step].values()), rel=1e-9)
        assert statistics.average_norm == pytest.approx(average, rel=1e-9)
        assert statistics.learning_rate == pytest.approx(0.1 / (1 - 0.9))
        assert (statistics.loss, statistics.target) == (3.0 + hvd.rank(), 0.5)
        assert statistics.merged_as_sums == options.get("scale_merged_lr", False)
    state = run.state()
    assert_same_everywhere(state)
    return digest(state)


@pytest.mark.parametrize("overlap", ["off", "on"])
@pytest.mark.parametrize(
    ("plan", "options"),
    [("0@1", {}), ("0@3", {"passes": 2}), ("0-2@5", {"scale_merged_lr": True}), ("0@1;1:0-1@3;3:0-3@5", {})],
)
def test_the_norms_are_those_of_one_step_whatever_is_merged(start, plan, options, overlap):
    bits = start(2, **OPTIONS).run(tell_norms, plan, options, plan=plan, overlap_forward=overlap, partition_bytes=4096)
    assert len(set(bits)) == 1


def ask(*options):
    return subprocess.run(
        [BUILD / "bin" / "deft", "status", *options], capture_output=True, text=True, check=True
    ).stdout


def ask_leader():
    """What the daemon of rank 0 says as the leader of this job."""
    jobs = {job["name"]: job for job in json.loads(ask("--json"))["jobs"]}
    return jobs[os.environ["DEFT_JOB"]].get("leader")


def told(losses, step):
    """What a training tells: a first fast fall, over within nine steps, and then one loss, later perhaps another."""
    return losses[0] * max(4 - step / 2, 1) if step < 60 else losses[1]


def train_and_ask(kind, losses):
    """A run that follows measured plans, and what `deft status` says of them before it ends."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("deft.torch").addHandler(handler)
    run = Run(kind)
    for group in run.optimizer.param_groups:  # with the usual rate this model does not bear late gradients
        group["lr"] = 1e-4
    for step in range(110):
        run.optimizer.zero_grad()
        backward(run.model, data_of(step, 1, run.dtype), 1)  # the same on all ranks: a gradient without noise
        if losses is not None:
            run.optimizer.report_loss(told(losses, step))
        run.optimizer.step()
    state = run.state()
    assert_same_everywhere(state)
    leader, text = ask_leader(), ask()
    hvd.allreduce(torch.zeros(1), name="asked")  # nobody leaves before all have asked
    return digest(state), leader, text, records


def asked(start, kind, losses, **options):
    cluster = start(2, **OPTIONS, fresh_wait_percent=0, max_late_percent=100)
    results = cluster.run(train_and_ask, kind, losses, workers=4, **options)
    assert len({bits for bits, *_ in results}) == 1
    return results[0][1:]


@pytest.mark.parametrize("losses", [(1e6, 1e6), (1e-3, 1e-3), (1e6, 1e-3)])
def test_measured_plans_are_judged_by_what_the_workers_tell(start, losses):
    leader, text, _ = asked(start, "sgd", losses)
    plans = [plan for plan in leader["plans"] if plan["judgement"]["judged"]]
    for plan in leader["plans"]:
        assert plan in plans or plan["stale_share"] == 0, json.dumps(plan)
    for plan in plans:
        assert plan["judgement"]["statistics"]["samples"] >= 4
        assert plan["judgement"]["accepted"] == (plan["judgement"]["ratio"] >= 0.99)
    if losses[0] == losses[1] == 1e6:  # no plan loses anything that counts
        assert all(plan["judgement"]["attempts"] == 1 for plan in plans), json.dumps(leader)
    [preserver] = leader["preserver"]
    assert preserver["judgement"]["judged"]
    assert preserver["statistics_refused"] == 0
    assert preserver["statistics"]["samples"] >= 1
    assert preserver["statistics"]["gradient"] > 0
    merges = any(plan["max_merged_steps"] > 1 for plan in leader["plans"])  # steps, whose gradients do differ
    assert preserver["statistics"]["noise"] < (0.1 if merges else 1e-9) * preserver["statistics"]["gradient"]
    assert preserver["statistics"]["learning_rate"] == pytest.approx(1e-3)
    if plans and plans[-1] == leader["plans"][-1]:
        assert "by the Preserver: ratio" in text


@pytest.mark.parametrize(("losses", "options"), [(None, {}), ((2.0, 2.0), {"preserver": "off"})])
def test_what_cannot_be_judged_is_followed_and_says_so(start, losses, options):
    leader, text, records = asked(start, "sgd", losses, **options)
    assert not any("judged by the loss alone" in record for record in records)
    if options:
        assert leader["preserver"] == []
        assert not any("judgement" in plan for plan in leader["plans"])
        return
    assert all(not plan["judgement"]["judged"] for plan in leader["plans"])
    assert "no loss was reported" in leader["preserver"][0]["judgement"]["note"]
    assert ("not judged: " in text) == bool(leader["plans"])


def test_other_optimizers_than_sgd_are_judged_by_the_loss_alone(start):
    leader, _, records = asked(start, "adamw", (2.0, 2.0))
    assert sum("judged by the loss alone: AdamW" in record for record in records) == 1
    [preserver] = leader["preserver"]
    assert preserver["statistics_refused"] == 0
    assert "no SGD" in preserver["judgement"]["note"]
    assert preserver["statistics"]["loss"] == pytest.approx(2.0)
    assert "gradient" not in preserver["statistics"]
    assert any(plan["stale_share"] > 0 for plan in leader["plans"])
    for plan in leader["plans"]:
        assert not plan["judgement"]["judged"]
        if plan["stale_share"] > 0:  # the first fall of the loss is behind
            assert "no SGD" in plan["judgement"]["note"], json.dumps(plan)


def report(loss, target):
    run = Run("sgd")
    run.step(2)
    run.optimizer.report_loss(loss, target)


@pytest.mark.parametrize(
    ("loss", "target", "message"),
    [
        (torch.zeros(2), 0, r"takes one number, not a tensor of shape \[2\]"),
        (1.0, float("nan"), "target of the loss is nan"),
        (1.0, -1, "target of the loss is -1"),
    ],
)
def test_a_report_that_makes_no_sense_is_an_error(start, loss, target, message):
    with pytest.raises(WorkerFailed, match=message):
        start(2, **OPTIONS).run(report, loss, target, timeout="5s")


def report_hostile_numbers():
    run = Run("sgd")
    run.step(3)
    for spoilt in ({"local_norm": float("nan")}, {"average_norm": -1.0}, {"loss": float("inf")}):
        numbers = {"step": 1, "local_norm": 1.0, "average_norm": 1.0, "learning_rate": 0.1, "loss": 1.0, **spoilt}
        with pytest.raises(deft.DeftError, match="no finite number"):
            run.group.report(deft.Statistics(**numbers))
    run.step(3)
    return digest(run.state())


def test_impossible_numbers_are_an_error_of_the_call_alone(start):
    assert len(set(start(2, **OPTIONS).run(report_hostile_numbers))) == 1
