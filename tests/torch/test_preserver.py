"""What the plugin tells of norms and losses, and that the leader's plans are judged by it."""

import json
import logging
import os
import re
import subprocess
import time

import deft
import deft.torch as hvd
import pytest
import torch
from deft._native import daemon_status
from delayed_reference import Run, backward, data_of
from launching import BUILD, WorkerFailed
from small_models import assert_same_everywhere, digest, loss_of, own_share

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


def tell_norms_of_scaled_losses(scale):
    """What is told of ten steps whose losses are multiplied by `scale`."""
    run = Run("sgd")
    scaler = hvd.GradScaler("cpu", init_scale=scale)
    told = []
    for step in range(10):
        run.optimizer.zero_grad()
        loss = loss_of(run.model, *own_share(*data_of(step, 1, run.dtype)[0]))
        scaler.scale(loss).backward()
        run.optimizer.report_loss(loss)
        if step == 1:
            send = run.group.report
            run.group.report = lambda statistics, send=send: (told.append(tuple(statistics)), send(statistics))
        scaler.step(run.optimizer)
        scaler.update()
    run.optimizer.flush()
    return told


def test_the_norms_are_those_of_the_loss_before_any_scaling(start):
    cluster = start(2, **OPTIONS)
    plain, scaled = (cluster.run(tell_norms_of_scaled_losses, scale, plan="0@1") for scale in (1.0, 1024.0))
    assert len(plain[0]) > 5
    assert scaled == plain  # bit for bit: the scale is a power of two


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


def records_of_deft():
    """What Deft logs from now on."""
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("deft.torch").addHandler(handler)
    return records


def train_and_ask(kind, losses):
    """A run that follows measured plans, and what `deft status` says of them before it ends."""
    records = records_of_deft()
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
    cluster = start(2, **OPTIONS, max_stale_percent=100)
    results = cluster.run(train_and_ask, kind, losses, workers=4, **options)
    assert len({bits for bits, *_ in results}) == 1
    return results[0][1:]


@pytest.fixture
def slow_links(tmp_path):
    """Options with which links take longer than the compute of `Wide`, also on a busy machine."""
    key = tmp_path / "key"
    made = subprocess.run([BUILD / "bin/deft", "keygen"], capture_output=True, text=True, check=True)
    key.touch(mode=0o600)
    key.write_text(made.stdout)
    return {"encrypt_gradients": "on", "secret_file": key}


class Wide(torch.nn.Module):
    """Next to no compute, many gradients, all the same on all ranks, so there is no noise."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(1_000_000)) for _ in range(3))

    def forward(self):
        return sum(weight.sum() for weight in self.weights)


ASK_EVERY = 20  # steps
GIVE_UP = 900


def train_until(optimizer, model, loss_of_step, wanted):
    """Steps until rank 0 sees a newest plan that is `wanted`; gives what the leader says then, on rank 0."""
    for step in range(1, GIVE_UP):
        optimizer.zero_grad()
        (model() * 1e-3).backward()
        optimizer.report_loss(loss_of_step(step))
        optimizer.step()
        if step % ASK_EVERY == 0:
            leader = ask_leader() if hvd.rank() == 0 else None
            seen = leader is not None and bool(leader["plans"]) and wanted(leader["plans"][-1])
            if hvd.broadcast_object(seen):
                return leader
    raise AssertionError(f"no such plan within {GIVE_UP} steps; the leader says {json.dumps(leader)}")


def rise_under_late_updates():
    model = Wide()
    plain = torch.optim.SGD(model.parameters(), lr=1e-4)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())

    def falls_first(step):
        return 1e6 * max(4 - step / 2, 1)

    before = train_until(optimizer, model, falls_first, lambda plan: plan["stale_share"] > 0)
    text = ask() if hvd.rank() == 0 else ""
    after = train_until(optimizer, model, lambda _step: 3e6, lambda plan: plan["stale_share"] == 0)
    hvd.barrier()  # nobody leaves before rank 0 has asked
    optimizer.flush()
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    assert_same_everywhere(state)
    return before, text, after


def test_late_updates_are_accepted_at_a_steady_loss_and_taken_back_when_it_rises(start, slow_links):
    cluster = start(2, **OPTIONS, **slow_links, max_stale_percent=100)
    before, text, after = cluster.run(rise_under_late_updates)[0]
    late = before["plans"][-1]
    assert late["judgement"]["judged"] and late["judgement"]["accepted"], json.dumps(late)
    assert late["judgement"]["attempts"] == 1 and late["judgement"]["ratio"] > 0.999, json.dumps(late)
    assert late["judgement"]["statistics"]["samples"] >= 4
    assert "by the Preserver: ratio" in text
    for plan in before["plans"] + after["plans"]:  # with a loss nothing is late that was not judged
        assert plan["judgement"]["judged"] or plan["stale_share"] == 0, json.dumps(plan)
    [preserver] = before["preserver"]
    assert preserver["statistics_refused"] == 0 and not preserver["judgement"]["loss_has_risen"]
    assert preserver["statistics"]["loss"] == pytest.approx(1e6)
    assert preserver["statistics"]["gradient"] == pytest.approx(3e6 * 1e-6, rel=0.01)  # 3,000,000 elements of 1e-3
    assert preserver["statistics"]["noise"] < 0.01 * preserver["statistics"]["gradient"]
    assert preserver["statistics"]["learning_rate"] == pytest.approx(1e-4)

    fresh = after["plans"][-1]
    rise = re.search(r"the Preserver: the loss rose from (\S+) to (\S+) under late updates", fresh["reason"])
    assert rise, json.dumps(fresh)
    level, newest = map(float, rise.groups())
    assert level == 1e6 and 1.1e6 < newest <= 3e6  # the mean of three samples
    assert fresh["max_merged_steps"] == 1 and fresh["max_staleness_steps"] == 0
    assert "the loss had risen" in fresh["judgement"]["note"], json.dumps(fresh)
    assert fresh["judgement"]["max_staleness_steps"] == 0  # what the planner was allowed
    [preserver] = after["preserver"]
    assert preserver["judgement"]["try_from_step"] > preserver["statistics"]["step"]  # not tried again at once


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


def delay_adamw():
    """Until a plan delays updates, however long a busy machine measures before."""
    records = records_of_deft()
    model = Wide()
    plain = torch.optim.AdamW(model.parameters(), lr=1e-4)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    leader = train_until(optimizer, model, lambda step: told((2.0, 2.0), step), lambda plan: plan["stale_share"] > 0)
    hvd.barrier()  # nobody leaves before rank 0 has asked
    optimizer.flush()
    return leader, records


def test_other_optimizers_than_sgd_are_judged_by_the_loss_alone(start, slow_links):
    leader, records = start(2, **OPTIONS, **slow_links, max_stale_percent=100).run(delay_adamw)[0]
    assert sum("judged by the loss alone: AdamW" in record for record in records) == 1
    [preserver] = leader["preserver"]
    assert preserver["statistics_refused"] == 0
    assert "no SGD" in preserver["judgement"]["note"]
    assert preserver["statistics"]["loss"] == pytest.approx(2.0)
    assert "gradient" not in preserver["statistics"]
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
        start(2, **OPTIONS).run(report, loss, target)


def has_risen():
    jobs = {job["name"]: job for job in daemon_status()["jobs"]}
    return jobs[os.environ["DEFT_JOB"]]["leader"]["preserver"][0]["judgement"]["loss_has_risen"]


def report_no_number():
    run = Run("sgd")
    for _ in range(12):
        run.backward()
        run.optimizer.report_loss(torch.tensor(float("nan")))
        run.optimizer.step()
    run.optimizer.flush()
    deadline = time.monotonic() + 60
    while hvd.rank() == 0 and not has_risen():
        assert time.monotonic() < deadline, daemon_status()
        time.sleep(0.01)
    hvd.barrier()  # nobody leaves before rank 0 has asked
    return True


def test_a_loss_that_is_no_number_has_risen(start):
    assert all(start(2, **OPTIONS).run(report_no_number))


def report_hostile_numbers():
    run = Run("sgd")
    run.step(3)
    for spoilt in ({"local_norm": float("nan")}, {"average_norm": -1.0}, {"target": float("inf")}):
        numbers = {"step": 1, "local_norm": 1.0, "average_norm": 1.0, "learning_rate": 0.1, "loss": 1.0, **spoilt}
        with pytest.raises(deft.DeftError, match="no finite number"):
            run.group.report(deft.Statistics(**numbers))
    run.step(3)
    return digest(run.state())


def test_impossible_numbers_are_an_error_of_the_call_alone(start):
    assert len(set(start(2, **OPTIONS).run(report_hostile_numbers))) == 1
